// Options that are read and refused: what is not built yet, in one place.
#include "bonfire/base/error.h"
#include "bonfire/parallel/strategies/kind.h"

namespace bonfire::fleet {

namespace {

void check_not_built(const DistributedStrategy& s) {
  require_effect("amp_dtype", s.amp_dtype != DistributedStrategy{}.amp_dtype, s.use_amp, "use_amp");
  require_effect("loss_scaling", s.loss_scaling.has_value(), s.use_amp && s.amp_dtype == "f16",
                 "use_amp and amp_dtype f16 (bf16 needs no scaling)");
  if (s.amp_dtype == "f16") throw_error<ConfigError>("[strategy] amp_dtype f16 is not available yet; leave it out");
  if (s.amp_dtype != "bf16")
    throw_error<ConfigError>("[strategy] amp_dtype is '{}', expected bf16 or f16", s.amp_dtype);
}

}  // namespace

extern const StrategyKind not_built;
const StrategyKind not_built{.name = "not_built", .check = check_not_built};

}  // namespace bonfire::fleet
