#pragma once
// How often something is done in a run: every so many epochs, steps or minutes.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace bonfire::train {

struct Interval {
  enum class Unit : uint8_t { epochs, steps, minutes };
  double count = 1;  // whole, but for minutes
  Unit unit = Unit::epochs;
  friend bool operator==(const Interval&, const Interval&) = default;
};

std::optional<Interval> parse_interval(std::string_view text);  // "2", "2 epochs", "500 steps", "10 min"; else nothing
std::string to_string(const Interval& interval);                // "2", "500 steps", "10 min"

// Whose turn it is: when something that is done at intervals is due.
class Turn {
 public:
  Turn(const Interval& every, int64_t step, double now) : every_(every), step_(step), since_(now) {}

  bool by_epochs(int64_t epochs) const;  // where these are done, at an epoch's end
  // Where a multiple of the steps was reached since it was last done: it may have to wait for an update.
  bool by_steps(int64_t step) const;
  bool by_clock(double now) const;  // seconds, on a clock that never goes back
  void done(int64_t step, double now);

 private:
  Interval every_;
  int64_t step_;  // when it was last done, or the run began
  double since_;
};

}  // namespace bonfire::train
