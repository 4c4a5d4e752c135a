#pragma once
// The simulator follows a schedule as the ranks of a pipeline would, on a clock of its own. It says how long a step
// takes and how long each rank waits in it, and refuses a table that does not work.

#include <string>
#include <vector>

#include "bonfire/parallel/pipeline/schedule.h"

namespace bonfire::pipeline {

// Seconds, or any unit. Of a rank; those of a chunk where it has several.
struct StageTimes {
  double forward = 1, backward = 2, weights = 0, reduce = 0, update = 0;
};
// What takes a forward pass and twice that for the backward pass, half of it W where the schedule has that.
StageTimes equal_times(ScheduleKind kind);

struct Simulation {
  struct Run {  // a program
    Item item;
    double begin, end;
  };
  std::vector<std::vector<Run>> ranks;  // programs alone: F, B, W, and those of reduce and update that take time
  double length = 0;                    // of the step
  std::vector<double> busy;             // [ranks]
  std::vector<int> slots;               // [ranks]: micro-batches that F has left something of, at most at a time
  double idle = 0;                      // share of all ranks' time in which they wait, without reduce and update
};

// `times` [ranks]; `message`: from the end of a program until what it sends can be read. ConfigError that names rank,
// position and item where the table makes ranks wait for each other, gives a slot away that is still needed, or does
// something twice, too early or never.
Simulation simulate(const Schedule& schedule, const std::vector<StageTimes>& times, double message = 0);

// The idle share by the formula of the schedule, for stages that all take equal_times, at least as many micro-batches
// as stages, and messages that cost nothing.
double expected_idle(const ScheduleOptions& options);

// A row for each rank, a column for each unit of time: "F0 F1 B0 B0 …"; then slots and idle shares.
std::string to_string(const Schedule& schedule);
std::string items_of(const Schedule& schedule);  // every item of every rank, in order

}  // namespace bonfire::pipeline
