#pragma once
// Where values that cross between devices lie. Programs of several devices run at the same time, so the order of nodes
// says little here: two such values share bytes only where everything that touches the one is sure to be done before
// the program that writes the other begins. Private to runtime.

#include <set>
#include <vector>

#include "bonfire/runtime/memory.h"

namespace bonfire::runtime {

// Which programs are sure to be done before others begin.
class ProgramOrder {
 public:
  // Programs are numbered in the order of submission.
  explicit ProgramOrder(size_t programs) : before_(programs) {}
  void add(int earlier, int later);  // `later` waits for `earlier`, all of whose own waits have been added
  bool before(int earlier, int later) const { return before_[static_cast<size_t>(later)].contains(earlier); }

 private:
  std::vector<std::set<int>> before_;  // [program]
};

struct CrossingValue {
  size_t bytes = 0;
  int writer = 0;              // program
  std::set<int> readers = {};  // programs
};

Placement place_crossings(const std::vector<CrossingValue>& values, const ProgramOrder& order);

}  // namespace bonfire::runtime
