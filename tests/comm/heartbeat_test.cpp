// Heartbeats of ranks that are threads here, with a real store. (tests/launch/frozen_test.cpp has real ranks that
// freeze.)
#include "bonfire/comm/heartbeat.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "bonfire/comm/store_client.h"
#include "bonfire/comm/store_server.h"
#include "tests/support/expect_error.h"

namespace bonfire::comm::heartbeat_test {
namespace {

using namespace std::chrono_literals;
using bonfire::testing::expect_mentions;

// Ranks 0 and 1, each on a host of its own as it seems.
class StoreHeartbeat : public ::testing::Test {
 protected:
  Rendezvous job(int rank) {
    Rendezvous made;
    made.environment.rank = rank;
    made.environment.world = 2;
    made.environment.starter = Starter::bonfire;
    made.store = connect_store({.port = server_->port(), .token = "secret", .generation = 0});
    for (int peer = 0; peer < 2; ++peer)
      made.peers.push_back({.rank = peer,
                            .host = "host",
                            .address = "127.0.0.1",
                            .machine = "machine " + std::to_string(peer),
                            .process = peer});
    return made;
  }

  size_t ranks_heard() { return job(0).store->last_signs().size(); }

  std::unique_ptr<StoreServer> server_ = serve_store({.token = "secret", .silence = 4s});
};

TEST_F(StoreHeartbeat, AllHearOfARankThatFallsSilent) {
  auto progress = std::make_shared<Progress>();
  std::promise<std::string> losses[2];
  Heartbeat zero(job(0)), one(job(1));
  zero.show(progress);
  zero.on_loss([&](const std::string& why) { losses[0].set_value(why); });
  one.on_loss([&](const std::string& why) { losses[1].set_value(why); });
  job(0).store->beat({.rank = 7, .name = "rank 7 (host, process 3)", .doing = "step 9, barrier"}, 10s);
  for (std::promise<std::string>& loss : losses) {
    std::future<std::string> text = loss.get_future();
    for (; text.wait_for(10ms) == std::future_status::timeout; ++progress->step) progress->call = "all_reduce";
    expect_mentions(text.get(), {"rank 7 (host, process 3) is frozen: it gives no sign of life", "step 9, barrier"});
  }
  std::string again;
  zero.on_loss([&](const std::string& why) { again = why; });  // who asks late is told at once
  expect_mentions(again, {"rank 7"});
}

TEST_F(StoreHeartbeat, WhoLeavesInGoodOrderIsNeitherFrozenNorCutOff) {
  Heartbeat zero(job(0));
  std::string loss;
  {
    Heartbeat one(job(1));
    while (ranks_heard() < 2) std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(ranks_heard(), 1u);
  zero.on_loss([&](const std::string& why) { loss = why; });
  EXPECT_EQ(loss, "");
}

}  // namespace
}  // namespace bonfire::comm::heartbeat_test
