#pragma once
// Where the time of steps goes: computing, waiting for data, waiting for communication.
//
// A device computes while the loop that feeds it already waits for the next batch, or for the other ranks to agree on
// the next step. Such waiting costs time only as far as the device is idle meanwhile. What the device itself waits for,
// collectives inside its steps, always does.

#include <cstdint>

namespace bonfire::train {

// Seconds of one rank, in all so far.
struct TimeSpent {
  double wall = 0;
  double computing = 0;      // of the device; 0 throughout: it does not measure, and counts as idle
  double communicating = 0;  // of the device, only waiting
  double for_data = 0;       // of the loop, in next()
  double agreeing = 0;       // of the loop, waiting for other ranks
};

struct TimeShares {
  double data_wait = 0, communication_wait = 0;  // the rest is computing
};

TimeShares shares_between(const TimeSpent& begin, const TimeSpent& end);

}  // namespace bonfire::train
