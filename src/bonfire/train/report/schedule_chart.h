#pragma once
// A pipeline's schedule as SVG: a row for each rank, a bar for each program, where F takes one unit of time and the
// backward pass two. Colours are the page's, through classes (report_frame.h).

#include <string>

#include "bonfire/parallel/pipeline/schedule.h"

namespace bonfire::train {

std::string draw_schedule(const pipeline::Schedule& schedule);

}  // namespace bonfire::train
