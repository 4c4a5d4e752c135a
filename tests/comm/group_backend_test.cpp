#include "bonfire/comm/group_backend.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace bonfire::comm::group_backend_test {
namespace {

std::shared_ptr<Group> refuse(const GroupRequest& request) {
  throw_error<ConfigError>("[mine] asked for {} ranks at {}", request.membership.size, request.address);
}
const bool registered = register_group_backend("mine", refuse);

TEST(GroupBackends, RegisterThemselvesByName) {
  ASSERT_TRUE(registered);
  EXPECT_FALSE(register_group_backend("mine", refuse));  // the name is taken
  const GroupRequest request{{.size = 3, .store = nullptr, .name = "job"}, "10.0.0.7", false};
  EXPECT_ERROR(make_group("mine", request), ConfigError, "[mine] asked for 3 ranks at 10.0.0.7");
  EXPECT_ERROR(make_group("carrier_pigeon", request), ConfigError,
               "there is no backend 'carrier_pigeon'; there are auto, gloo, mine, mpi, shm");
  EXPECT_ERROR(make_group("shm", request), ConfigError, "backend shm is for ranks of one host; use gloo or mpi");
}

}  // namespace
}  // namespace bonfire::comm::group_backend_test
