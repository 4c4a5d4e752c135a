#pragma once
// How ranks along a tensor axis share a model, without any of them: what each holds of every parameter, and for which
// ops they gather. Behind `bonfire inspect shards`.

#include <string>

#include "bonfire/passes/shard.h"
#include "bonfire/train/config/config.h"
#include "bonfire/train/report/step_profile.h"

namespace bonfire::train {

// A line per parameter and buffer, then what a training step gathers. The subject's model keeps the first rank's part
// from then on. ConfigError as from fleet::distributed_model.
std::string shards_table(const StepSubject& subject, const Config& config);

// "layer_norm (encoder.norm, 2.0 MB)": those of one op and module together.
std::string in_words(const std::vector<passes::Gathered>& gathered);

}  // namespace bonfire::train
