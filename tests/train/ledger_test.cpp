#include "bonfire/train/checkpoint/ledger.h"

#include <gtest/gtest.h>

#include "bonfire/base/error.h"
#include "bonfire/train/report/sample_trace.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::train::ledger_test {
namespace {

using bonfire::testing::expect_mentions;
using bonfire::testing::ScratchFolder;

// A run over 100 samples, as a trainer records it.
class Recorder {
 public:
  explicit Recorder(Ledger& ledger) : ledger_(ledger) {}
  int64_t batch = 16, world = 1;
  bool drop_last = false;

  void steps(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      if (at == 100 || (drop_last && at + batch > 100)) {
        ++epoch;
        at = 0;
      }
      const int64_t samples = std::min(batch, 100 - at);
      ledger_.add({.step = ++step,
                   .epoch = epoch,
                   .begin = at,
                   .samples = samples,
                   .of = 100,
                   .seed = 7,
                   .world = world,
                   .drop_last = drop_last});
      at += samples;
    }
  }

  int64_t step = 0, epoch = 0, at = 0;

 private:
  Ledger& ledger_;
};

LedgerFindings proven(const Ledger& ledger) {
  LedgerFindings found = check_ledger(Ledger::parse(ledger.json()));
  EXPECT_EQ(found.faults, std::vector<std::string>{});
  EXPECT_EQ(found.summary.find("every sample of every epoch was trained on exactly once"), 0U) << found.summary;
  return found;
}

TEST(Ledger, ProvesWholeEpochsInFewEntries) {
  Ledger ledger;
  Recorder(ledger).steps(21);
  EXPECT_EQ(ledger.entries().size(), 6U);  // of each epoch the full batches and the last one
  expect_mentions(proven(ledger).summary, {"3 epochs in 21 steps, on 1 rank"});
}

TEST(Ledger, ProvesARunThatWasResumedAndResizedInTheMiddleOfAnEpoch) {
  Ledger ledger;
  Recorder run(ledger);
  run.steps(10);
  ledger.note_restart();
  run.batch = 24;
  run.world = 2;
  run.steps(10);
  expect_mentions(proven(ledger).summary, {"on 1 and 2 ranks, resumed 1 time", "so far"});
}

TEST(Ledger, SaysHowManyDropLastHasLeftOut) {
  Ledger ledger;
  Recorder run(ledger);
  run.drop_last = true;
  run.steps(13);
  expect_mentions(proven(ledger).summary, {"but for those that do not fill a batch (drop_last: 4 of an epoch)"});
}

TEST(Ledger, NamesSamplesThatWereLeftOutOrTrainedOnTwice) {
  Ledger ledger;
  Recorder run(ledger);
  run.steps(2);
  run.at += 2;  // as if a resume had gone on two samples later
  run.steps(2);
  run.at -= 1;
  run.steps(5);
  const std::vector<uint32_t> numbers = sample_numbers(ledger.entries()[0].first, 32, 34);
  LedgerFindings found = check_ledger(ledger);
  ASSERT_EQ(found.faults.size(), 2U);
  EXPECT_EQ(found.faults[0],
            "epoch 1: 2 samples not trained on: " + std::to_string(numbers[0]) + ", " + std::to_string(numbers[1]));
  expect_mentions(found.faults[1], {"epoch 1: 1 sample trained on more than once: "});
  expect_mentions(found.summary, {"not every sample"});
}

TEST(Ledger, AnEpochThatWasCutShortIsNoProof) {
  Ledger ledger;
  Recorder run(ledger);
  run.steps(3);
  run.at = 100;
  run.steps(2);
  ASSERT_EQ(check_ledger(ledger).faults.size(), 1U);
  expect_mentions(check_ledger(ledger).faults[0], {"epoch 1: 52 samples not trained on: ", "and 40 more"});
}

TEST(Ledger, StepsThatAreNotRecordedAreNoProof) {
  Ledger ledger;
  Recorder run(ledger);
  run.step = 7;  // an older build has trained a first epoch
  run.epoch = 1;
  run.steps(7);
  expect_mentions(check_ledger(ledger).faults[0], {"steps 1 to 7 are not recorded"});
  run.steps(3);
  --run.step;
  run.steps(1);
  expect_mentions(check_ledger(ledger).faults[1], {"step 17 is recorded after step 17"});
}

TEST(Ledger, AnotherOrderInTheMiddleOfAnEpochIsNoProof) {
  Ledger ledger;
  ledger.add({.step = 1, .begin = 0, .samples = 50, .of = 100, .seed = 1});
  ledger.add({.step = 2, .begin = 50, .samples = 50, .of = 100, .seed = 2});
  expect_mentions(check_ledger(ledger).faults[0], {"epoch 1: it was in the order of seed 1 at step 1 and of seed 2"});
}

TEST(Ledger, WhatIsNoneIsAnError) {
  EXPECT_ERROR(Ledger::parse("[]"), DataError, "[ledger]");
  EXPECT_ERROR(Ledger::parse("{\"restarts\": 0, \"steps\": [[1, 2]]}"), DataError, "[ledger]");
}

// Two ranks, each of which reads every second sample.
void trace(const Ledger& ledger, const std::filesystem::path& run) {
  for (int rank = 0; rank < 2; ++rank) {
    SampleTrace trace(run, 0, rank);
    for (const LedgerEntry& entry : ledger.entries())
      for (int64_t i = 0; i < entry.steps; ++i) {
        const int64_t begin = entry.first.begin + i * entry.first.samples;
        std::vector<uint32_t> own;
        const std::vector<uint32_t> all = sample_numbers(entry.first, begin, begin + entry.first.samples);
        for (size_t place = static_cast<size_t>(rank); place < all.size(); place += 2) own.push_back(all[place]);
        trace.add(entry.first.step + i, entry.first.epoch, own);
      }
    trace.flush();
  }
}

TEST(SampleTrace, AgreesWithTheLedgerOrNamesTheSteps) {
  Ledger ledger;
  Recorder run(ledger);
  run.world = 2;
  run.steps(20);
  ScratchFolder folder;
  EXPECT_EQ(compare_with_traces(ledger, folder.path()).steps, 0);  // not traced
  trace(ledger, folder.path());
  TraceComparison agreed = compare_with_traces(ledger, folder.path());
  EXPECT_EQ(agreed.steps, 20);
  EXPECT_EQ(agreed.untraced, 0);
  EXPECT_EQ(agreed.faults, std::vector<std::string>{});

  std::string text = folder.get("samples/restart-0.rank-1");
  size_t line = text.find("\n5 0 ") + 5;
  folder.put("samples/restart-0.rank-1", text.substr(0, line) + "4711" + text.substr(text.find(' ', line)));
  TraceComparison other = compare_with_traces(ledger, folder.path());
  ASSERT_EQ(other.faults.size(), 1U);
  expect_mentions(other.faults[0], {"step 5; recorded but not read: sample", "read but not recorded: sample 4711"});

  std::filesystem::remove(folder / "samples/restart-0.rank-1");
  expect_mentions(compare_with_traces(ledger, folder.path()).faults.at(0), {"step 1; no trace of rank 1"});
}

}  // namespace
}  // namespace bonfire::train::ledger_test
