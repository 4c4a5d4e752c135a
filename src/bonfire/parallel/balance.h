#pragma once
// balance: auto, without the communication: how much of each batch a rank should have, by how fast it was.
//
//   Balance balance(2, 64);                          // two ranks, which begin with 64 samples each
//   if (balance.after_step() == Balance::Mark::end)  // of a window
//     if (balance.note({{1000, 3000}})) ...          // nanoseconds a sample → shares() are now 96 and 32
//
// Ranks gather their times at the end of each window of steps and all come to the same shares, because only whole
// numbers are compared. A share moves in eighths of an equal one, so that a rank meets few batch sizes: each is another
// plan to compile. Shares change only where the mean of the last two windows and each of them alone say that a step
// gets shorter by a tenth; one that something else disturbed changes nothing. Windows grow longer from 8 to 64 steps:
// a run finds its shares soon, and later seldom stops to measure.

#include <cstdint>
#include <span>
#include <vector>

namespace bonfire {

// Shares of world × batch samples, at least one each, with which the slowest rank is done soonest. `nanoseconds`
// [rank]: a sample's. An equal share is `batch`; they differ from it by multiples of an eighth, rounded down.
std::vector<int64_t> shares_for(std::span<const int64_t> nanoseconds, int64_t batch);

class Balance {
 public:
  // ConfigError for a batch of one sample, which cannot be less.
  Balance(int64_t ranks, int64_t batch);

  const std::vector<int64_t>& shares() const { return shares_; }  // [rank] samples

  enum class Mark { none, begin, end };
  // To be asked after each step: a window begins there; or one ends, and the next begins. The first two steps with new
  // shares are in none.
  Mark after_step();
  // At the end of a window, the same on all ranks: a sample's nanoseconds [rank]. True: shares() have changed.
  bool note(std::span<const int64_t> nanoseconds);

 private:
  bool worth(const std::vector<int64_t>& shares, std::span<const int64_t> nanoseconds) const;

  int64_t batch_;
  std::vector<int64_t> shares_;
  std::vector<int64_t> before_;  // nanoseconds in the window before; empty: there is none with these shares
  int64_t window_ = 8, left_;    // steps, of the window and until it begins or ends
  bool open_ = false;            // whether a window has begun
};

}  // namespace bonfire
