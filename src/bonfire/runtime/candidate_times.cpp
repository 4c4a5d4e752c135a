#include "bonfire/runtime/candidate_times.h"

#include <algorithm>
#include <numeric>

namespace bonfire::runtime {

void Slowness::note(std::string_view algorithm, double times_the_best, double runs) {
  std::lock_guard lock(mutex_);
  Seen& all = seen_.try_emplace(std::string(algorithm)).first->second;
  all.times_the_best += times_the_best;
  all.runs += runs;
}

double Slowness::hope(std::string_view algorithm) const {
  constexpr double kLeast = 1.3, kMost = 2.5;
  const Seen all = seen(algorithm);
  return all.runs < kPresumed ? kMost : std::min(kMost, kLeast * of(all));
}

Slowness::Seen Slowness::seen(std::string_view algorithm) const {
  std::lock_guard lock(mutex_);
  auto found = seen_.find(algorithm);
  return found == seen_.end() ? Seen() : found->second;
}

void CandidateTimes::note(size_t i, double nanoseconds) {
  times_[i] = std::min(times_[i], nanoseconds);
  best_ = std::min(best_, nanoseconds);
  totals_[i].nanoseconds += nanoseconds;
  totals_[i].runs += 1;
}

size_t CandidateTimes::count_near(double factor) const {
  size_t count = 0;
  for (size_t i = 0; i < times_.size(); ++i) count += near(i, factor) ? 1 : 0;
  return count;
}

std::vector<size_t> CandidateTimes::leaders() const {
  constexpr size_t kMost = 3;
  std::vector<size_t> list;
  std::vector<size_t> order(times_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return times_[a] < times_[b]; });
  for (size_t i : order) {
    auto same = [&](size_t j) { return algorithms_[j] == algorithms_[i]; };
    if (list.size() < kMost && near(i, slowness_.hope(algorithms_[i])) && std::none_of(list.begin(), list.end(), same))
      list.push_back(i);
  }
  return list;
}

bool CandidateTimes::follows_another(size_t i) {
  constexpr double kHopeless = 1.8;  // layouts seldom make a difference of a third
  for (size_t j = 0; j < times_.size(); ++j) {
    if (j == i || times_[j] == kUnknown || near(j, kHopeless) || algorithms_[j] != algorithms_[i]) continue;
    times_[i] = times_[j];
    return true;
  }
  return false;
}

void CandidateTimes::remember() const {
  for (size_t i : leaders())
    if (totals_[i].runs > 1) slowness_.note(algorithms_[i], totals_[i].nanoseconds / times_[i], totals_[i].runs);
}

std::vector<double> CandidateTimes::expected_times() const {
  std::vector<double> expected = times_;
  for (size_t i = 0; i < expected.size(); ++i) expected[i] *= slowness_.of(algorithms_[i]);
  return expected;
}

}  // namespace bonfire::runtime
