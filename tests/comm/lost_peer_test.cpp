#include "bonfire/comm/lost_peer.h"

#include <gtest/gtest.h>

#include <new>

#include "bonfire/base/error.h"
#include "bonfire/launch/launcher.h"

namespace bonfire::comm::lost_peer_test {
namespace {

// What a rank ends with whose step fails by `cause`: steps wrap it.
template <class Cause>
int status_after(const Cause& cause) {
  try {
    try {
      throw cause;
    } catch (const std::exception& error) {
      std::throw_with_nested(DeviceError(std::string("[all_reduce] failed on cpu:0: ") + error.what()));
    }
  } catch (const std::exception& error) {
    return launch::exit_status_of(error);
  }
}

TEST(LostPeer, IsSeenThroughWhatAStepHasMadeOfIt) {
  EXPECT_EQ(launch::exit_status_of(CommError("rank 1 is gone")), launch::kLostPeer);
  EXPECT_EQ(status_after(CommError("rank 1 is gone")), launch::kLostPeer);
  EXPECT_EQ(status_after(TimeoutError("waited 300 s for rank 1")), launch::kLostPeer);
  EXPECT_EQ(status_after(DataError("target 9 of row 0 is not a class")), 1);
  EXPECT_EQ(status_after(std::bad_alloc()), 1);
  EXPECT_EQ(launch::exit_status_of(DeviceError("no memory")), 1);
}

}  // namespace
}  // namespace bonfire::comm::lost_peer_test
