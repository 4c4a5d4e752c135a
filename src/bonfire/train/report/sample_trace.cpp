#include "bonfire/train/report/sample_trace.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/base/private_file.h"

namespace bonfire::train {

namespace {

namespace fs = std::filesystem;

fs::path folder_of(const fs::path& run) { return run / "samples"; }
fs::path file_of(const fs::path& run, int64_t restart, int64_t rank) {
  return folder_of(run) / fmt::format("restart-{}.rank-{}", restart, rank);
}

struct TracedStep {
  int64_t epoch = 0;
  std::vector<uint32_t> numbers;
};

// By step. A rank that died may have left a part of a line, of a step that is not in the ledger.
std::map<int64_t, TracedStep> read_trace(const fs::path& file) {
  std::map<int64_t, TracedStep> steps;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    int64_t step = 0;
    TracedStep traced;
    words >> step >> traced.epoch;
    for (uint32_t number; words >> number;) traced.numbers.push_back(number);
    steps[step] = std::move(traced);
  }
  return steps;
}

class Comparison {
 public:
  Comparison(const Ledger& ledger, const fs::path& run) : ledger_(ledger), run_(run) {}

  TraceComparison run() {
    if (!base::exists(folder_of(run_))) return {};
    for (const LedgerEntry& entry : ledger_.entries()) compare(entry);
    return std::move(result_);
  }

 private:
  static constexpr size_t kMostFaults = 20;

  void compare(const LedgerEntry& entry) {
    if (entry.restart != restart_) {
      traces_.clear();
      restart_ = entry.restart;
    }
    for (int64_t rank = std::ssize(traces_); rank < entry.first.world; ++rank)
      traces_.push_back(read_trace(file_of(run_, entry.restart, rank)));
    const std::vector<uint32_t> order = sample_numbers(entry.first, entry.first.begin, entry.end());
    const auto samples = static_cast<size_t>(entry.first.samples);
    for (int64_t i = 0; i < entry.steps; ++i)
      compare_step(entry, entry.first.step + i, std::span(order).subspan(static_cast<size_t>(i) * samples, samples));
  }

  void compare_step(const LedgerEntry& entry, int64_t step, std::span<const uint32_t> recorded) {
    std::vector<uint32_t> expected(recorded.begin(), recorded.end()), read;
    std::vector<int64_t> missing, elsewhere;  // ranks
    for (int64_t rank = 0; rank < entry.first.world; ++rank) {
      const std::map<int64_t, TracedStep>& trace = traces_[static_cast<size_t>(rank)];
      auto found = trace.find(step);
      if (found == trace.end()) {
        missing.push_back(rank);
        continue;
      }
      if (found->second.epoch != entry.first.epoch) elsewhere.push_back(rank);
      read.insert(read.end(), found->second.numbers.begin(), found->second.numbers.end());
    }
    if (std::ssize(missing) == entry.first.world) {
      ++result_.untraced;
      return;
    }
    ++result_.steps;
    std::ranges::sort(expected);
    std::ranges::sort(read);
    if (missing.empty() && elsewhere.empty() && read == expected) return;
    fault(step, expected, read, missing, elsewhere);
  }

  void fault(int64_t step, const std::vector<uint32_t>& expected, const std::vector<uint32_t>& read,
             const std::vector<int64_t>& missing, const std::vector<int64_t>& elsewhere) {
    if (result_.faults.size() >= kMostFaults) return;
    std::vector<uint32_t> unread, unrecorded;
    std::ranges::set_difference(expected, read, std::back_inserter(unread));
    std::ranges::set_difference(read, expected, std::back_inserter(unrecorded));
    std::string text = fmt::format("step {}", step);
    auto add = [&text](const char* what, const auto& numbers) {
      constexpr size_t kMost = 8;
      if (numbers.empty()) return;
      const size_t shown = std::min(kMost, numbers.size());
      text += fmt::format("; {} {}{}", what,
                          fmt::join(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                          shown < numbers.size() ? fmt::format(" and {} more", numbers.size() - shown) : "");
    };
    add("no trace of rank", missing);
    add("another epoch is traced by rank", elsewhere);
    add("recorded but not read: sample", unread);
    add("read but not recorded: sample", unrecorded);
    result_.faults.push_back(text);
  }

  const Ledger& ledger_;
  const fs::path& run_;
  int64_t restart_ = -1;
  std::vector<std::map<int64_t, TracedStep>> traces_;  // [rank], of this restart
  TraceComparison result_;
};

}  // namespace

SampleTrace::SampleTrace(const fs::path& run, int64_t restart, int rank) : path_(file_of(run, restart, rank)) {
  std::error_code error;
  fs::create_directories(run, error);  // another host's may have none
  base::make_private_folder(folder_of(run), error);
  out_.open(path_, std::ios::trunc);
  if (!out_) throw_error<DataError>("[samples] cannot write '{}'", path_.string());
}

void SampleTrace::add(int64_t step, int64_t epoch, std::span<const uint32_t> numbers) {
  out_ << fmt::format("{} {} {}\n", step, epoch, fmt::join(numbers, " "));
}

void SampleTrace::flush() {
  if (!out_.flush())
    throw_error<DataError>("[samples] cannot write '{}': make room, or train without --trace-samples", path_.string());
}

TraceComparison compare_with_traces(const Ledger& ledger, const fs::path& run) { return Comparison(ledger, run).run(); }

}  // namespace bonfire::train
