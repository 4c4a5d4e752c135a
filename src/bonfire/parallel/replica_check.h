#pragma once
// ReplicaCheck: ranks that train by the same gradients have the same bits. They are compared as they go, so that a bit
// that has flipped in one rank's memory, or a kernel that has gone wrong there, does not spoil the rest of a run.
//
//   fleet::ReplicaCheck replicas(fleet::replicated(model, optimizer));
//   ...
//   if (step % 500 == 0) replicas.start();           // the device hashes the values before the steps that follow
//   if (step % 500 == 2) replicas.finish(step - 2);  // compares the hashes over the ranks
//
// Ranks round alike only on the same kind of device, with as many threads: each is compared with those like it. Where
// more of these agree than not, the others are at fault: they throw DeviceError, and the rest CommError, which says
// that another rank is to blame. Otherwise all throw DeviceError. All messages are the same: the first value that
// differs, by name, and the ranks.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bonfire/nn/module.h"
#include "bonfire/nn/state_dict.h"
#include "bonfire/optim/optimizer.h"
#include "bonfire/runtime/compile.h"

namespace bonfire::fleet {

// What is the same on all ranks along the data axis: the model's parameters, then the optimizer's state, of both what
// is stored here. Running statistics are not.
nn::StateDict replicated(const nn::Module& model, const optim::Optimizer& optimizer);

class ReplicaCheck {
 public:
  explicit ReplicaCheck(nn::StateDict values);
  ReplicaCheck(const ReplicaCheck&) = delete;
  ReplicaCheck& operator=(const ReplicaCheck&) = delete;

  // Both by all ranks, at the same step. start() only submits; it is no step of the program's (random numbers).
  void start();
  bool started() const { return !hashes_.empty(); }
  void finish(int64_t step);  // the step that the values are of, for the message
  void compare(int64_t step) {
    start();
    finish(step);
  }

 private:
  std::vector<int64_t> read();  // [value]

  nn::StateDict values_;
  std::vector<std::pair<Device, std::vector<size_t>>> places_;  // of the values on each device
  CompiledStep hash_;
  std::vector<Tensor> hashes_;  // i64, for each of places_; empty: none are awaited
};

// What differs, in words; empty: nothing. For each rank: its kind, the hashes of the values [name], and its number in
// the job. `at_fault` becomes those ranks that differ from most of their kind.
std::string difference_between(std::span<const std::string> names, std::span<const int64_t> kinds,
                               std::span<const std::vector<int64_t>> hashes, std::span<const int> numbers,
                               std::vector<int>* at_fault = nullptr);

}  // namespace bonfire::fleet
