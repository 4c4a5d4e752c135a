// One choice of kernels for all ranks: their records become one, and what it lacks is timed by one of them.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "bonfire/base/error.h"
#include "bonfire/comm/store_client.h"
#include "bonfire/comm/store_server.h"
#include "bonfire/graph/engine.h"
#include "bonfire/graph/trace.h"
#include "bonfire/runtime/build_stamp.h"
#include "bonfire/runtime/timing_peers.h"
#include "bonfire/runtime/tuning.h"
#include "tests/comm/ranks.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::testing::shared_tuning_test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

json record() { return json::parse(runtime::tuning_record()); }
void set_record(const json& times) {
  require(runtime::set_tuning_record(json{{"build", runtime::build_stamp()}, {"times", times}}.dump()), "not taken");
}

TEST(SharedTuning, TheFirstRankThatKnowsATimeGivesItToAll) {
  expect_all_fine(run_ranks(Backend::shm, 3, [](Rank& rank) {
    const std::string own = "node of rank " + std::to_string(rank.rank());
    set_record({{"common", {{"plain", 10 + rank.rank()}}}, {own, {{"plain", 20 + rank.rank()}}}});
    runtime::share_tuning(*rank.group);
    const json expected{{"common", {{"plain", 10.0}}},
                        {"node of rank 0", {{"plain", 20.0}}},
                        {"node of rank 1", {{"plain", 21.0}}},
                        {"node of rank 2", {{"plain", 22.0}}}};
    require(record()["times"] == expected, record().dump());
    rank.group->barrier();
  }));
}

OutputSpecs same_spec(const InferContext& context) { return {context.input(0)}; }
const Op& timed_op = register_op({.name = "timed_for_test", .infer = same_spec});
const Op& waiting_op = register_op({.name = "waiting_for_test", .infer = same_spec});

Counters* counters_of_rank = nullptr;
const bool registered = register_kernel("waiting_for_test", DeviceType::cpu, [](const KernelRequest& request) {
  return one_candidate(request, [](const Run&) {
    while ((*counters_of_rank)[1] == 0) std::this_thread::sleep_for(1ms);
  });
});

// A rank that shares the work of timing, with an empty record of its own.
class TimingRank {
 public:
  explicit TimingRank(Rank& rank) : rank_(rank) {
    setenv("BONFIRE_CACHE", folder_.path().c_str(), 1);
    setenv("BONFIRE_TUNE", "full", 1);
    runtime::reload_tuning();
    peers_ = runtime::share_timing(*rank.group, rank.store, 30s);
  }

  // Two candidates; counter 0 counts how many are built.
  runtime::TimedNode node(int64_t size, bool fails = false) {
    const GraphNode* node = graph_.add(timed_op, {{graph_.add_input(LeafKind::feed, {{size}, DType::f32, {}}), 0}});
    const Layout arriving[] = {{}};
    std::vector<Candidate> list;
    for (const char* name : {"one", "other"}) {
      list.push_back(make_candidate({*node, arriving}, name, [](const Run&) {}));
      list.back().build = [this, fails, build = list.back().build] {
        if (fails) throw_error<DeviceError>("this rank has no memory");
        ++rank_.counters[0];
        return build();
      };
    }
    return {node, std::move(list)};
  }

  // All ranks have the same.
  void require_same(const std::vector<double>& times) {
    std::vector<double> all(times.size() * static_cast<size_t>(rank_.size()));
    rank_.group->all_gather({times.data(), times.size(), DType::f64}, {all.data(), all.size(), DType::f64});
    for (size_t i = 0; i < all.size(); ++i) require(all[i] == times[i % times.size()], "the ranks' times differ");
  }

 private:
  Rank& rank_;
  ScratchFolder folder_;
  Graph graph_;
  std::shared_ptr<runtime::TimingPeers> peers_;
};

TEST(SharedTuning, EveryCandidateIsTimedByOneRankForAll) {
  expect_all_fine(run_ranks(Backend::shm, 3, [](Rank& rank) {
    TimingRank self(rank);
    std::vector<runtime::TimedNode> nodes;
    for (int64_t i = 0; i < 10; ++i) nodes.push_back(self.node(100 + i));
    runtime::share_out_timing(nodes);
    std::vector<double> times;
    for (const auto& [node, candidates] : nodes)
      for (double one : runtime::candidate_times(*node, candidates)) times.push_back(one);
    require(times.size() == 20, "not all are known");
    self.require_same(times);
    require(rank.counters[0] == 20, std::to_string(rank.counters[0]) + " kernels were built");
    rank.group->barrier();
  }));
}

// Ranks come when they like and ask for what they like: nobody waits for one that does not come.
TEST(SharedTuning, RanksMayPlanOtherThingsAtOtherTimes) {
  expect_all_fine(run_ranks(Backend::shm, 3, [](Rank& rank) {
    TimingRank self(rank);
    const auto common = self.node(50), own = self.node(60 + rank.rank());
    if (rank.rank() == 2) rank.wait_for(1, 2);  // the others have chosen
    runtime::candidate_times(*own.node, own.candidates);
    std::vector<double> times = runtime::candidate_times(*common.node, {common.candidates[0]});
    if (rank.rank() == 1) runtime::candidate_times(*common.node, common.candidates);  // more than the others know of
    ++rank.counters[1];
    rank.wait_for(1, 3);
    times.push_back(runtime::candidate_times(*common.node, common.candidates)[1]);
    self.require_same(times);
    // What each has measured goes into everyone's record, and so into a checkpoint.
    runtime::share_tuning(*rank.group);
    require(record()["times"].size() == 4, record().dump());
    rank.group->barrier();
  }));
}

// Rank 0's device is busy with a step that goes on when rank 1 comes, and rank 1 needs times first.
TEST(SharedTuning, ARankWhoseStepWaitsForAnotherDoesNotHoldItUp) {
  expect_all_fine(run_ranks(Backend::shm, 2, [](Rank& rank) {
    TimingRank self(rank);
    counters_of_rank = &rank.counters;
    const auto node = self.node(70), earlier = self.node(71);
    runtime::candidate_times(*earlier.node, earlier.candidates);  // what device this is must be known
    Tensor result;
    if (rank.rank() == 0) {
      result = trace_op(waiting_op, {Tensor::from<float>(std::vector<float>(4), {4})});
      commit();
    }
    rank.group->barrier();                                     // it is under way
    if (rank.rank() == 1) std::this_thread::sleep_for(100ms);  // lets rank 0 come first
    self.require_same([&] {
      auto times = runtime::candidate_times(*node.node, node.candidates);
      rank.counters[1] = 1;
      return times;
    }());
    synchronize();
    rank.group->barrier();
  }));
}

TEST(SharedTuning, WhatOneRankFailsToTimeAnotherTries) {
  expect_all_fine(run_ranks(Backend::shm, 2, [](Rank& rank) {
    TimingRank self(rank);
    const auto node = self.node(80, rank.rank() == 0);
    if (rank.rank() == 1) rank.wait_for(1, 1);
    bool failed = false;
    try {
      runtime::candidate_times(*node.node, node.candidates);
    } catch (const DeviceError&) {
      failed = true;
    }
    require(failed == (rank.rank() == 0), "rank 0 alone should fail");
    rank.counters[1] = 1;
    rank.group->barrier();
  }));
}

TEST(SharedTuning, AWaitForARankThatNeverAnswersEnds) {
  auto server = comm::serve_store({});
  auto store = comm::connect_store({.port = server->port()});
  runtime::TimingPeers gone(store, 10s), patient(store, 30s), hasty(store, 10ms);
  EXPECT_TRUE(gone.take("node/0"));
  EXPECT_FALSE(hasty.take("node/0"));
  EXPECT_ERROR(hasty.wait("node/0"), TimeoutError, "another rank has been timing");
  std::thread heartbeat([&] { patient.end("rank 1 is frozen"); });
  EXPECT_ERROR(patient.wait("node/0"), CommError, "rank 1 is frozen");
  heartbeat.join();
  gone.set("node/0", {{"plain", 7}});
  EXPECT_EQ(gone.wait("node/0"), (runtime::Times{{"plain", 7}}));
}

}  // namespace
}  // namespace bonfire::testing::shared_tuning_test
