#include "bonfire/parallel/balance.h"

#include <algorithm>
#include <utility>

#include "bonfire/base/error.h"

namespace bonfire {

namespace {

constexpr int64_t kFirstSteps = 2;          // with new shares: they compile, and their memory is new
constexpr int64_t kLongestWindow = 64;      // steps
constexpr int64_t kParts = 8;               // of an equal share
constexpr int64_t kMost = 100'000'000'000;  // nanoseconds a sample: products with a batch stay within 64 bits

// How long a step takes, which ends with its slowest rank.
int64_t longest(const std::vector<int64_t>& shares, std::span<const int64_t> nanoseconds) {
  int64_t most = 0;
  for (size_t r = 0; r < shares.size(); ++r) most = std::max(most, shares[r] * nanoseconds[r]);
  return most;
}

}  // namespace

// All begin with the least there can be; then each part goes to the rank that is done with it first.
std::vector<int64_t> shares_for(std::span<const int64_t> nanoseconds, int64_t batch) {
  const int64_t part = std::max<int64_t>(1, batch / kParts), parts = (batch - 1) / part;  // that a rank can give away
  std::vector<int64_t> shares(nanoseconds.size(), batch - parts * part);
  for (int64_t left = parts * static_cast<int64_t>(shares.size()); left > 0; --left) {
    size_t first = 0;
    for (size_t r = 1; r < shares.size(); ++r)
      if ((shares[r] + part) * nanoseconds[r] < (shares[first] + part) * nanoseconds[first]) first = r;
    shares[first] += part;
  }
  return shares;
}

Balance::Balance(int64_t ranks, int64_t batch)
    : batch_(batch), shares_(static_cast<size_t>(ranks), batch), left_(kFirstSteps) {
  if (batch < 2)
    throw_error<ConfigError>(
        "[balance] with {} sample a rank no rank can have fewer than another; use a larger batch_size, or leave "
        "balance: auto out",
        batch);
}

Balance::Mark Balance::after_step() {
  if (--left_ > 0) return Mark::none;
  const Mark mark = open_ ? Mark::end : Mark::begin;
  if (open_) window_ = std::min(2 * window_, kLongestWindow);
  left_ = window_;
  open_ = true;
  return mark;
}

bool Balance::worth(const std::vector<int64_t>& shares, std::span<const int64_t> nanoseconds) const {
  return 10 * longest(shares, nanoseconds) <= 9 * longest(shares_, nanoseconds);
}

bool Balance::note(std::span<const int64_t> nanoseconds) {
  std::vector<int64_t> now(nanoseconds.begin(), nanoseconds.end());
  for (int64_t& one : now) one = std::clamp<int64_t>(one, 1, kMost);
  const std::vector<int64_t> before = std::exchange(before_, now);
  if (before.empty()) return false;
  std::vector<int64_t> mean;
  for (size_t r = 0; r < now.size(); ++r) mean.push_back((before[r] + now[r]) / 2);
  std::vector<int64_t> better = shares_for(mean, batch_);
  if (!worth(better, mean) || !worth(better, before) || !worth(better, now)) return false;
  shares_ = std::move(better);
  before_.clear();
  left_ = kFirstSteps;
  open_ = false;
  return true;
}

}  // namespace bonfire
