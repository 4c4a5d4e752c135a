#pragma once
// What strategies have changed in the options of a thread's steps, and how to put it back.

#include <functional>
#include <vector>

#include "bonfire/parallel/strategies/kind.h"

namespace bonfire::fleet {

class OptionChanges final : public StrategyPart {
 public:
  explicit OptionChanges(StepOptions& options) : options_(options) {}
  OptionChanges(const OptionChanges&) = delete;
  OptionChanges& operator=(const OptionChanges&) = delete;
  ~OptionChanges() override;  // puts back all but what the program has changed since

  void make(const DistributedStrategy& strategy);  // only what it chooses

 private:
  template <class T>
  void set(T StepOptions::*option, const Choice<T>& choice) {
    if (!choice.chosen) return;
    changes_.push_back([option, made = choice.value, before = options_.*option](StepOptions& now) {
      if (now.*option == made) now.*option = before;
    });
    options_.*option = choice.value;
  }

  StepOptions& options_;
  std::vector<std::function<void(StepOptions&)>> changes_;
};

}  // namespace bonfire::fleet
