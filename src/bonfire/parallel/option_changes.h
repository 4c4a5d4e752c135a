#pragma once
// What strategies have changed in the options of a thread's steps, and how to put it back.

#include <functional>
#include <vector>

#include "bonfire/parallel/strategy.h"
#include "bonfire/passes/pass.h"

namespace bonfire::fleet {

class OptionChanges {
 public:
  // Only what the strategy chooses.
  void make(passes::Options& options, const DistributedStrategy& strategy);

  // But for what the program has changed since.
  void undo(passes::Options& options);

 private:
  template <class T>
  void set(passes::Options& options, T passes::Options::*option, const Choice<T>& choice) {
    if (!choice.chosen) return;
    changes_.push_back([option, made = choice.value, before = options.*option](passes::Options& now) {
      if (now.*option == made) now.*option = before;
    });
    options.*option = choice.value;
  }

  std::vector<std::function<void(passes::Options&)>> changes_;
};

}  // namespace bonfire::fleet
