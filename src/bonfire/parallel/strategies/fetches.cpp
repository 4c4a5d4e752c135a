// fetch_frequency.
#include "bonfire/parallel/fleet.h"
#include "bonfire/parallel/job.h"

namespace bonfire::fleet {

namespace {

struct Fetches final : StrategyPart {
  int64_t frequency = 1, asked = 0;  // steps
};

void check_fetches(const DistributedStrategy& strategy) {
  require_at_least_one("fetch_frequency", strategy.fetch_frequency);
}

void apply_fetches(const Applied& to, std::unique_ptr<StrategyPart>& kept) {
  auto fetches = std::make_unique<Fetches>();
  if (to.strategy.fetch_frequency.chosen)
    fetches->frequency = to.strategy.fetch_frequency;
  else if (kept)
    fetches->frequency = static_cast<const Fetches&>(*kept).frequency;
  kept = std::move(fetches);
}

void compare_fetches(const Applied& to, comm::Settings& settings) {
  settings.emplace_back("fetch_frequency", print(int64_t{to.strategy.fetch_frequency}));
}

}  // namespace

extern const StrategyKind fetches;
const StrategyKind fetches{
    .name = "fetches", .check = check_fetches, .apply = apply_fetches, .compare = compare_fetches};

bool fetch_due() {
  auto* part = job() ? job()->part<Fetches>(fetches) : nullptr;
  return part == nullptr || part->asked++ % part->frequency == 0;
}

}  // namespace bonfire::fleet
