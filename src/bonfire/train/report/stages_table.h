#pragma once
// Where a pipeline cuts a model, and which stage does what when, without any ranks. Behind `bonfire inspect schedule`.

#include <string>

#include "bonfire/train/config/config.h"
#include "bonfire/train/report/step_profile.h"

namespace bonfire::train {

// Rows of a micro-batch: those of a step in as many parts, the last of which may have fewer.
int64_t rows_of_micro_batch(const Config& config);

// A line per stage with what it costs, by what that is known, and the schedule. The subject is a micro-batch.
// ConfigError for a mesh without stages, and as from pipeline::Pipeline.
std::string stages_table(const StepSubject& subject, const Config& config);

}  // namespace bonfire::train
