#include "bonfire/data/hold_out.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "bonfire/data/loader.h"

namespace bonfire::data {

HeldOut hold_out(const std::shared_ptr<const Dataset>& dataset, const HoldOutOptions& options) {
  constexpr uint64_t kStream = uint64_t{1} << 40;    // beyond those of epochs, which have the same seed
  std::map<int64_t, std::vector<int64_t>> of_class;  // samples
  for (int64_t i = 0; i < dataset->size(); ++i) of_class[options.by_class ? dataset->label(i) : 0].push_back(i);
  std::vector<int64_t> kept, held;
  for (const auto& [label, samples] : of_class) {
    auto count = static_cast<size_t>(std::llround(options.share * static_cast<double>(samples.size())));
    count = samples.size() > 1 ? std::clamp<size_t>(count, 1, samples.size() - 1) : 0;
    const std::vector<uint32_t> order =
        shuffled(static_cast<uint32_t>(samples.size()), options.seed, kStream + static_cast<uint64_t>(label));
    for (size_t i = 0; i < order.size(); ++i) (i < count ? held : kept).push_back(samples[order[i]]);
  }
  std::sort(kept.begin(), kept.end());
  std::sort(held.begin(), held.end());
  return {std::make_shared<Subset>(dataset, std::move(kept)), std::make_shared<Subset>(dataset, std::move(held))};
}

}  // namespace bonfire::data
