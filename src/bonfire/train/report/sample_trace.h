#pragma once
// SampleTrace: which samples a rank has really read, by their numbers in the data set, a line for each step. It is what
// the ledger (train/checkpoint/ledger.h) is compared with.
//
//   RUN/samples/restart-0.rank-1      313 0 17 40021 5 …        step, epoch, the numbers
//
// Each rank writes its own, where it runs. What it was told is on the disk after flush(), which a checkpoint waits for.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "bonfire/train/checkpoint/ledger.h"

namespace bonfire::train {

class SampleTrace {
 public:
  SampleTrace(const std::filesystem::path& run, int64_t restart, int rank);  // DataError
  void add(int64_t step, int64_t epoch, std::span<const uint32_t> numbers);
  void flush();  // DataError

 private:
  std::filesystem::path path_;
  std::ofstream out_;
};

struct TraceComparison {
  int64_t steps = 0;                // that were compared
  int64_t untraced = 0;             // steps of the ledger that no rank has written anything of
  std::vector<std::string> faults;  // steps at which ranks read other samples than the ledger says, the first ones
};

// Empty where the run was not traced.
TraceComparison compare_with_traces(const Ledger& ledger, const std::filesystem::path& run);

}  // namespace bonfire::train
