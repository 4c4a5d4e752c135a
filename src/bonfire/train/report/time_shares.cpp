#include "bonfire/train/report/time_shares.h"

#include <algorithm>

namespace bonfire::train {

TimeShares shares_between(const TimeSpent& begin, const TimeSpent& end) {
  const double wall = std::max(end.wall - begin.wall, 1e-9);
  const double communicating = std::clamp(end.communicating - begin.communicating, 0.0, wall);
  const double idle = std::max(0.0, wall - communicating - (end.computing - begin.computing));
  const double data = end.for_data - begin.for_data, agreeing = end.agreeing - begin.agreeing;
  const double waited = data + agreeing, lost = waited > idle ? idle / waited : 1;
  return {.data_wait = lost * data / wall, .communication_wait = (communicating + lost * agreeing) / wall};
}

}  // namespace bonfire::train
