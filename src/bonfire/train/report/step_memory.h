#pragma once
// What a training step needs of memory, known before it runs.
//
//   for (const train::StepMemory& one : train::Trainer(config).memory()) std::cout << train::to_string(one);

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "bonfire/tensor/device.h"

namespace bonfire::train {

enum class MemoryKind { activations, gradients, update, workspace };  // of temporaries
inline constexpr size_t kMemoryKinds = 4;
const char* name_of(MemoryKind kind);

struct LargeValue {
  MemoryKind kind;
  size_t bytes;
  std::string node, module, shape;
};

// One program's temporaries on one device. What a plan over several programs hands between devices is in none of them.
struct TemporariesOverStep {
  std::vector<std::array<size_t, kMemoryKinds>> bytes;  // [steps][kinds]
  size_t fullest = 0;                                   // the step with the most
  std::vector<LargeValue> largest;                      // that live then, the largest first
  size_t forward_steps = 0, backward_steps = 0;         // the rest updates
  size_t arena = 0;                                     // what they take as they are laid out
};

// Of one device of one rank, in bytes. Nothing here depends on the data.
struct StepMemory {
  std::string rank, program;  // "rank 0 of data 2 × tensor 2", "stage 1 of 2"; empty: there is one. The fullest program
  Device device;
  size_t parameters = 0;  // and what else the model keeps, such as running statistics
  size_t average = 0;     // their running mean
  size_t gradients = 0, optimizer = 0;
  size_t batches = 0;     // on the device: of steps under way
  size_t made_ahead = 0;  // in host memory, by the workers of the data loader
  size_t results = 0;     // of steps under way, that the host has not read
  size_t slots = 0;       // of a stage: values between its programs, of all micro-batches under way
  size_t crossings = 0;   // that other devices read, of steps under way
  std::string budget;     // what keeping to one costs, in words; empty: there is none, or it is not needed
  TemporariesOverStep temporaries;

  size_t stored() const {  // all but the arena
    return parameters + average + gradients + optimizer + batches + results + slots + crossings;
  }
  size_t all() const { return stored() + temporaries.arena; }
};

std::string to_string(const StepMemory& memory);

}  // namespace bonfire::train
