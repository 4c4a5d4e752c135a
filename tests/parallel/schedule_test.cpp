// Schedules of pipelines: every table that can be asked for runs through without a rank that waits for ever, keeps no
// more micro-batches than its formula says, and idles as long as its formula says. Tables that are wrong are refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "bonfire/parallel/pipeline/simulator.h"
#include "tests/support/expect_error.h"
#include "tests/support/under_sanitizer.h"

namespace bonfire::pipeline {
namespace {

// How many micro-batches a stage keeps at a time at most.
int slots_of(ScheduleKind kind, int stages, int micro_batches, int stage) {
  if (kind == ScheduleKind::gpipe) return micro_batches;
  return std::min(micro_batches, kind == ScheduleKind::one_f_one_b ? stages - stage : stages);
}

constexpr ScheduleKind kWithoutChunks[] = {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble};

std::vector<StageTimes> times_of(const Schedule& schedule) {
  return std::vector<StageTimes>(schedule.ranks.size(), equal_times(schedule.options.kind));
}

// Sanitizers take minutes for all sizes, and find in one of nine what they find in all.
constexpr int kBetween = testing::kUnderSanitizer ? 9 : 1, kBetweenInterleaved = testing::kUnderSanitizer ? 27 : 1;

TEST(Schedule, OfAnySizeRunsThroughAndIdlesAsItsFormulaSays) {
  for (ScheduleKind kind : kWithoutChunks)
    for (int stages = 1; stages <= 16; ++stages)
      for (int micro_batches = 1; micro_batches <= 64; micro_batches += kBetween) {
        const Schedule schedule = make_schedule({.kind = kind, .stages = stages, .micro_batches = micro_batches});
        const Simulation ran = simulate(schedule, times_of(schedule));
        const std::string what = fmt::format("{} of {} in {} stages", name_of(kind), micro_batches, stages);
        for (int stage = 0; stage < stages; ++stage) {
          const auto i = static_cast<size_t>(stage);
          ASSERT_EQ(ran.slots[i], slots_of(kind, stages, micro_batches, stage)) << what;
          ASSERT_EQ(schedule.slots[i], ran.slots[i]) << what;
          ASSERT_LE(schedule.activations[i], ran.slots[i] + 1) << what;
          ASSERT_LE(schedule.gradients[i], ran.slots[i] + 1) << what;
        }
        if (micro_batches >= stages) {
          ASSERT_NEAR(ran.idle, expected_idle(schedule.options), 1e-9) << what;
        }
      }
}

TEST(Schedule, InterleavedOfAnySizeRunsThroughAndIdlesAsItsFormulaSays) {
  for (int stages = 1; stages <= 16; ++stages)
    for (int chunks = 1; chunks <= 4; ++chunks)
      for (int micro_batches = 1; micro_batches <= 64; micro_batches += kBetweenInterleaved) {
        if (chunks > 1 && stages == 1) continue;  // a rank sends nothing to itself
        const Schedule schedule = make_schedule(
            {.kind = ScheduleKind::interleaved, .stages = stages, .micro_batches = micro_batches, .chunks = chunks});
        const Simulation ran = simulate(schedule, times_of(schedule));
        const std::string what = fmt::format("{} ranks, {} chunks, {} micro-batches", stages, chunks, micro_batches);
        if (micro_batches >= stages) {
          ASSERT_NEAR(ran.idle, expected_idle(schedule.options), 1e-9) << what;
        }
        ASSERT_EQ(schedule.slots.size(), static_cast<size_t>(stages * chunks)) << what;
        for (int slots : schedule.slots) ASSERT_LE(slots, micro_batches) << what;
      }
}

// Of two ranks each sends the other activations and gradients: what is sent first is received first.
TEST(Schedule, ReceivesInTheOrderInWhichTheOtherRankSends) {
  const Schedule schedule =
      make_schedule({.kind = ScheduleKind::interleaved, .stages = 2, .micro_batches = 5, .chunks = 3});
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<std::string> sent, received;
    auto text = [](const Item& item, int from, int to) {
      return fmt::format("{} of {} from stage {} to {}", item.phase == Phase::forward ? "activations" : "gradients",
                         item.micro_batch, from, to);
    };
    for (const Item& item : schedule.ranks[static_cast<size_t>(rank)])
      if (item.work == Work::send) sent.push_back(text(item, item.chunk * 2 + rank, item.other));
    for (const Item& item : schedule.ranks[static_cast<size_t>(1 - rank)])
      if (item.work == Work::receive) received.push_back(text(item, item.other, item.chunk * 2 + 1 - rank));
    EXPECT_EQ(sent, received);
    EXPECT_EQ(sent.size(), 25U);  // 5 connections of 5 micro-batches, there and back, from both ranks
  }
}

TEST(Schedule, RunsThroughWithAnyTimesAndAnyConnectionsBetweenStages) {
  const auto seed = static_cast<uint32_t>(std::random_device()());
  std::mt19937 random(seed);
  auto below = [&](int count) { return static_cast<int>(random() % static_cast<uint32_t>(count)); };
  for (int trial = 0; trial < 400 / kBetween; ++trial) {
    ScheduleOptions options{.kind = kWithoutChunks[below(3)], .stages = 2 + below(7), .micro_batches = 1 + below(20)};
    if (below(2) == 0) options.kind = ScheduleKind::interleaved;
    if (options.kind == ScheduleKind::interleaved) options.chunks = 1 + below(4);
    const int stages = options.stages * options.chunks;
    for (int from = 0; from < stages; ++from)
      for (int to = from + 1; to < stages; ++to)
        if ((to - from) % options.stages != 0 && (to == from + 1 || below(4) == 0)) options.edges.push_back({from, to});
    const Schedule schedule = make_schedule(options);
    std::vector<StageTimes> times;
    for (int stage = 0; stage < options.stages; ++stage)
      times.push_back(
          {.forward = 1.0 + below(9), .backward = 1.0 + below(9), .weights = 1.0 + below(9), .reduce = 1, .update = 1});
    const Simulation ran = simulate(schedule, times, 0.5);
    EXPECT_GT(ran.idle, 0) << "seed " << seed;
    for (size_t stage = 0; stage < ran.busy.size(); ++stage) EXPECT_GE(ran.length, ran.busy[stage]) << "seed " << seed;
  }
}

TEST(Schedule, KeepsLessWith1F1BThanWithGPipe) {
  const ScheduleOptions options{.kind = ScheduleKind::gpipe, .stages = 4, .micro_batches = 8};
  EXPECT_EQ(make_schedule(options).slots, (std::vector<int>{8, 8, 8, 8}));
  ScheduleOptions other = options;
  other.kind = ScheduleKind::one_f_one_b;
  EXPECT_EQ(make_schedule(other).slots, (std::vector<int>{4, 3, 2, 1}));
}

TEST(Schedule, SendsWhatAStageFurtherOnReadsStraightToIt) {
  const Schedule schedule =
      make_schedule({.kind = ScheduleKind::gpipe, .stages = 3, .micro_batches = 1, .edges = {{0, 1}, {1, 2}, {0, 2}}});
  std::vector<int> peers;
  for (const Item& item : schedule.ranks[0])
    if (item.work == Work::send) peers.push_back(item.peer);
  EXPECT_EQ(peers, (std::vector<int>{1, 2}));
}

// --- the simulator finds what is wrong -------------------------------------------------------------------------------

Schedule small_schedule() {
  return make_schedule({.kind = ScheduleKind::one_f_one_b, .stages = 2, .micro_batches = 3});
}

std::vector<Item>::iterator item_in(std::vector<Item>& items, Work work, int micro_batch) {
  return std::find_if(items.begin(), items.end(),
                      [&](const Item& one) { return one.work == work && one.micro_batch == micro_batch; });
}

TEST(Simulator, NamesTheItemThatWaitsForEver) {
  Schedule schedule = small_schedule();
  schedule.ranks[1].erase(item_in(schedule.ranks[1], Work::send, 0));  // of a gradient
  EXPECT_ERROR(simulate(schedule, times_of(schedule)), ConfigError,
               "of stage 0, B 0 of slot 0: stage 1 sends micro-batch 1 first");
  std::erase_if(schedule.ranks[1], [](const Item& one) { return one.work == Work::send; });
  EXPECT_ERROR(simulate(schedule, times_of(schedule)), ConfigError, "of stage 0, B 0 of slot 0: it waits for ever");
}

TEST(Simulator, NamesAMessageThatNobodyReceives) {
  Schedule schedule = small_schedule();
  std::vector<Item>& items = schedule.ranks[0];
  const Item sent = *item_in(items, Work::send, 2);
  items.insert(item_in(items, Work::send, 2), sent);
  EXPECT_ERROR(simulate(schedule, times_of(schedule)), ConfigError,
               "stage 0 sends 1 messages to 1 that nobody receives");
}

TEST(Simulator, NamesASlotThatIsStillNeeded) {
  Schedule schedule = small_schedule();
  for (Item& item : schedule.ranks[0])
    if (item.work == Work::forward) item.slot = 0;
  EXPECT_ERROR(simulate(schedule, times_of(schedule)), ConfigError,
               "F 1 in slot 0: the slot is still another micro-batch's");
}

TEST(Simulator, NamesWhatIsDoneTwiceTooEarlyOrNever) {
  Schedule twice = small_schedule();
  const Item once = *item_in(twice.ranks[0], Work::backward, 0);
  twice.ranks[0].insert(item_in(twice.ranks[0], Work::backward, 0), once);
  EXPECT_ERROR(simulate(twice, times_of(twice)), ConfigError, "B 0 of slot 0: it is there twice");
  Schedule early = small_schedule();
  std::swap(*item_in(early.ranks[1], Work::forward, 1), *item_in(early.ranks[1], Work::backward, 1));
  EXPECT_ERROR(simulate(early, times_of(early)), ConfigError, "B 1 of slot 0: what it reads is not computed yet");
  Schedule never = small_schedule();
  std::erase_if(never.ranks[0], [](const Item& one) { return one.work == Work::backward && one.micro_batch == 2; });
  EXPECT_ERROR(simulate(never, times_of(never)), ConfigError, "micro-batch 2 is not done");
}

TEST(Schedule, RefusesNumbersThatCannotBe) {
  EXPECT_ERROR(make_schedule({.stages = 2, .micro_batches = 0}), ConfigError, "micro_batches is 0");
  EXPECT_ERROR(make_schedule({.stages = 2, .micro_batches = 2, .chunks = 2}), ConfigError, "use interleaved");
  EXPECT_ERROR(make_schedule({.kind = ScheduleKind::interleaved, .stages = 2, .chunks = 2, .edges = {{0, 1}, {0, 2}}}),
               ConfigError, "stage 2 reads what stage 0 computes, and rank 0 has both");
  EXPECT_ERROR(parse_schedule("1f2b"), ConfigError, "there is no schedule '1f2b'; expected gpipe, 1f1b, zero_bubble");
}

TEST(Schedule, IsPrintedOnAClock) {
  EXPECT_NE(to_string(small_schedule()).find("stage 0  F0 F1 .  .  B0 B0 F2 B1 B1 .  B2 B2\n"), std::string::npos)
      << to_string(small_schedule());
}

}  // namespace
}  // namespace bonfire::pipeline
