#include "bonfire/parallel/device_speeds.h"

#include <algorithm>

namespace bonfire::detail {

bool DeviceSpeeds::ends_window(std::span<const data::Share> shares) {
  const auto devices = static_cast<int64_t>(rows_.size());
  if (!balance_ && shares[0].all < 2 * devices) return false;  // too few samples to share in another way
  if (!balance_) balance_.emplace(devices, shares[0].all / devices);
  for (size_t i = 0; i < rows_.size(); ++i) rows_[i] += shares[i].own;
  mark_ = balance_->after_step();
  return mark_ != Balance::Mark::none;
}

void DeviceSpeeds::note(const std::vector<double>& seconds) {
  std::vector<int64_t> nanoseconds;
  for (size_t i = 0; i < seconds.size(); ++i) {
    const auto rows = static_cast<double>(std::max<int64_t>(1, rows_[i]));
    nanoseconds.push_back(static_cast<int64_t>(1e9 * (seconds[i] - since_[i]) / rows));
  }
  since_ = seconds;
  rows_.assign(rows_.size(), 0);
  if (mark_ == Balance::Mark::end) balance_->note(nanoseconds);
}

}  // namespace bonfire::detail
