#pragma once
// How fast the devices of a DataParallel are, and what each gets of a batch by that (parallel/balance.h).

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bonfire/data/sampler.h"
#include "bonfire/parallel/balance.h"

namespace bonfire::detail {

class DeviceSpeeds {
 public:
  explicit DeviceSpeeds(size_t devices) : since_(devices), rows_(devices) {}

  std::span<const int64_t> shares() const {  // [device] samples; empty: all have as much
    return balance_ ? std::span<const int64_t>(balance_->shares()) : std::span<const int64_t>();
  }

  // To be asked before each step that trains. True: it is the last of a window, and note() wants to know its end.
  bool ends_window(std::span<const data::Share> shares);
  // Seconds that each device has computed until the end of that step.
  void note(const std::vector<double>& seconds);

 private:
  std::optional<Balance> balance_;  // since the first batch
  Balance::Mark mark_ = Balance::Mark::none;
  std::vector<double> since_;  // [device] seconds at the window's begin
  std::vector<int64_t> rows_;  // [device] since then
};

}  // namespace bonfire::detail
