#pragma once
// Which of several kernels is the quickest, by runs that others disturb. Private to runtime.

#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bonfire::runtime {

// How much longer than at its best an algorithm takes on average, by what was seen of it in this process. Processors
// that share a core share its matrix unit, too: now and then others have it for a tenth of a second, and kernels that
// need it take up to thrice as long while the rest do not.
class Slowness {
 public:
  // The sum of `runs` runs was that many times the least of them.
  void note(std::string_view algorithm, double times_the_best, double runs);
  double of(std::string_view algorithm) const { return of(seen(algorithm)); }
  // How far behind the best an algorithm may be after one run and still turn out to be it.
  double hope(std::string_view algorithm) const;

 private:
  static constexpr double kPresumed = 6;  // runs at its best that count before any was seen
  struct Seen {
    double times_the_best = 0, runs = 0;
  };
  static double of(const Seen& seen) { return (seen.times_the_best + kPresumed) / (seen.runs + kPresumed); }
  Seen seen(std::string_view algorithm) const;

  mutable std::mutex mutex_;
  std::map<std::string, Seen, std::less<>> seen_;
};

// Times of candidates while they are measured, in nanoseconds. A candidate is an algorithm in some layouts.
class CandidateTimes {
 public:
  CandidateTimes(std::vector<std::string> algorithms, Slowness& slowness)
      : algorithms_(std::move(algorithms)),
        slowness_(slowness),
        times_(algorithms_.size(), kUnknown),
        totals_(algorithms_.size()) {}

  void note(size_t i, double nanoseconds);
  bool near(size_t i, double factor) const { return times_[i] <= factor * best_; }
  size_t count_near(double factor) const;
  // The quickest of each algorithm, of the few best algorithms.
  std::vector<size_t> leaders() const;
  // Takes the time of the same algorithm in another layout where that is hopeless.
  bool follows_another(size_t i);
  double best() const { return best_; }
  std::vector<double> list() const { return times_; }
  // Keeps in mind how steady the leaders were.
  void remember() const;
  // Of long kernels: the least time says little where others often disturb.
  std::vector<double> expected_times() const;

 private:
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();
  struct Total {
    double nanoseconds = 0, runs = 0;
  };

  std::vector<std::string> algorithms_;
  Slowness& slowness_;
  std::vector<double> times_;
  std::vector<Total> totals_;
  double best_ = kUnknown;
};

}  // namespace bonfire::runtime
