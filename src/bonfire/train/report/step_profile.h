#pragma once
// Where the time of a training step goes, without any data: the step of a model on random samples, compiled and timed
// node by node. Behind `bonfire inspect plan` and `bonfire inspect graph`.
//
//   train::StepSubject subject = train::step_subject("resnet18_small", {.batch = 64});
//   std::cout << train::to_string(train::profile_step(subject, {.steps = 12}));

#include <functional>
#include <memory>
#include <string>

#include "bonfire/models/make.h"
#include "bonfire/parallel/placement.h"
#include "bonfire/parallel/strategy.h"
#include "bonfire/runtime/plan.h"

namespace bonfire::train {

// A model, one batch of the kind that it takes, and how its results are judged.
struct StepSubject {
  models::Model model;
  Tensor input, target;
  std::function<Tensor(const Tensor& logits, const Tensor& target)> loss = {};  // empty: cross entropy of classes
};

struct SubjectOptions {
  int64_t batch = 64;
  std::optional<int64_t> image_size = {}, classes = {};  // empty: what the model was made for
  Device place = {};
  Placement placement = {};
};

// Images of 28 × 28 or 224 × 224, or texts of 100 or 128 tokens, by the model's name; all numbers random.
StepSubject step_subject(const std::string& model, const SubjectOptions& options = {});

struct StepProfile {
  std::shared_ptr<runtime::Plan> plan;  // of the whole step: forward, backward, update with momentum
  int64_t samples = 0;                  // of a batch
  // Milliseconds. The first step compiles and chooses kernels; `processor` is of all threads.
  double first = 0, median = 0, best = 0, processor = 0;
};

struct ProfileOptions {
  int steps = 12;  // 0: only compiles
  DistributedStrategy strategy = {};
};
StepProfile profile_step(const StepSubject& subject, const ProfileOptions& options = {});

std::string to_string(const StepProfile& profile);  // a line per node, sums by op, and the whole
std::string to_json(const StepProfile& profile);    // {"step_ms": ..., "nodes": [{"op": ..., "candidate": ...}, ...]}

}  // namespace bonfire::train
