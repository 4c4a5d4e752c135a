#pragma once
// Where the memory of a step goes, as text. Behind `bonfire inspect memory`.

#include "bonfire/runtime/plan.h"
#include "bonfire/train/report/step_memory.h"

namespace bonfire::train {

TemporariesOverStep temporaries_over_step(const runtime::Plan& plan, Device device);

}  // namespace bonfire::train
