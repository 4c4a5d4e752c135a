#pragma once
// The sample ledger: which samples of which epoch each step was trained on. It is part of every checkpoint, so it is
// the history of exactly those weights: steps that a crash undid are not in it, and those that were done again in their
// place are.
//
//   ledger.add({.step = 313, .epoch = 0, .begin = 19968, .samples = 64, .of = 60000});   // at each step
//   LedgerFindings found = check_ledger(ledger);
//   found.faults.empty();          // every sample of every epoch exactly once
//
// The order of an epoch is a pure function of (seed, epoch), and a step takes the next samples of it (data/sampler.h):
// an epoch in which steps take every place once, none twice, has trained on every sample once. What was really read is
// compared with it where ranks have written it down: train/report/sample_trace.h.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace bonfire::train {

struct LedgerStep {
  int64_t step = 0;              // counted from 1
  int64_t epoch = 0, begin = 0;  // epoch from 0; the place in its order where the step begins
  int64_t samples = 0;           // of all ranks
  int64_t of = 0;                // samples that the epoch goes over
  uint64_t seed = 0;             // of its order
  int64_t world = 1;             // ranks
  bool drop_last = false;        // samples that do not fill a batch were to be left out
};

// Steps in a row that take as many samples each.
struct LedgerEntry {
  LedgerStep first;
  int64_t steps = 1;
  int64_t restart = 0;  // how often the run had been taken up before

  int64_t end_step() const { return first.step + steps; }
  int64_t end() const { return first.begin + steps * first.samples; }  // in the epoch's order
};

class Ledger {
 public:
  void add(const LedgerStep& step);
  void note_restart() { ++restarts_; }  // the run goes on from a checkpoint

  std::span<const LedgerEntry> entries() const { return entries_; }
  int64_t restarts() const { return restarts_; }

  std::string json() const;
  static Ledger parse(const std::string& json);  // DataError

 private:
  int64_t restarts_ = 0;
  std::vector<LedgerEntry> entries_;
};

// The numbers of the samples that are in the places begin … end − 1 of the order of the step's epoch.
std::vector<uint32_t> sample_numbers(const LedgerStep& step, int64_t begin, int64_t end);

struct LedgerFindings {
  std::string summary;              // in one sentence
  std::vector<std::string> faults;  // samples that were not trained on, or more than once; steps that are not recorded
};
LedgerFindings check_ledger(const Ledger& ledger);

}  // namespace bonfire::train
