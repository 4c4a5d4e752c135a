#pragma once
// The memory of a step on one device as SVG: what stays, and above it the temporaries, kind by kind, from the first
// node to the last; beside it the largest values where it is fullest. Colours are the page's, through classes
// (report_frame.h).

#include <string>

#include "bonfire/train/report/step_memory.h"

namespace bonfire::train {

std::string draw_memory(const StepMemory& memory);

}  // namespace bonfire::train
