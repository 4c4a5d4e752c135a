#pragma once
// What stages must equal: one device that adds up the gradients of as many micro-batches.

#include <map>
#include <string>
#include <vector>

#include "tests/parallel/small_models.h"

namespace bonfire::in_stages {

using pipeline::ScheduleKind;

inline constexpr ScheduleKind kSchedules[] = {ScheduleKind::gpipe, ScheduleKind::one_f_one_b,
                                              ScheduleKind::zero_bubble};

struct Training {
  int64_t micro_batches = 4;
  std::vector<int64_t> batches = {8, 8, 6, 8};  // rows; the third does not fill its micro-batches
  std::optional<double> clip = {};
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int chunks = 1;
  std::optional<std::vector<std::string>> cut = {};
  bool adam = false;  // not where a gradient is nothing but rounding: it makes that as large as any
  int replicas = 1;
  int64_t accumulate = 1;           // batches of an update
  std::optional<double> mean = {};  // of the weights, with this decay
  bool mixed_precision = false, sync_batch_norm = false;
  std::vector<std::string> recompute = {};  // modules
  DType dtype = DType::f32;
};

// All weights and buffers by name, optimizer states, means of weights, and the losses of every micro-batch.
using Outcome = std::map<std::string, std::vector<double>>;

inline optim::Optimizer optimizer_for(const Training& run, const nn::Module& module) {
  if (run.adam) return optim::Adam(module.parameters(), {.lr = 0.003});
  return optim::Momentum(module.parameters(), {.lr = 0.05, .momentum = 0.9});
}

inline Net make_net(const Subject& subject, const Training& run) {
  manual_seed(5);
  Net net = subject.make();
  if (run.dtype == DType::f64) widen(net.module);
  return net;
}

inline int64_t rows_of_micro_batch(const Training& run) {
  return (run.batches[0] + run.micro_batches - 1) / run.micro_batches;
}

// Adds up micro-batch by micro-batch. Of several replicas one after the other; where they share statistics those rows
// of all of them at once that they have at the same time.
class OnOneDevice {
 public:
  OnOneDevice(const Subject& subject, const Training& run)
      : subject_(subject), run_(run), net_(make_net(subject, run)), optimizer_(optimizer_for(run, net_.module)) {
    if (run.mean) mean_.emplace(net_.module, optimizer_, *run.mean);
  }

  Outcome train() {
    StepOptions& options = StepContext::current().options;
    const bool before = std::exchange(options.use_amp, run_.mixed_precision);
    const std::vector<std::string> recomputed_before = std::exchange(options.recompute, run_.recompute);
    const bool at_once = run_.sync_batch_norm;
    RandomState& random = StepContext::current().random;
    for (size_t b = 0; b < run_.batches.size(); ++b) {
      for (int replica = 0; replica < (at_once ? 1 : run_.replicas); ++replica) {
        if (!at_once) random.rank = static_cast<uint64_t>(replica);
        if (!at_once) random.world = static_cast<uint64_t>(run_.replicas);
        if (replica > 0) random.step = first_step_;
        first_step_ = random.step;
        std::vector<int> of{replica};
        if (at_once) of.clear();
        for (int one = 0; at_once && one < run_.replicas; ++one) of.push_back(one);
        add_gradients(b, of);
      }
      if (static_cast<int64_t>(b + 1) % run_.accumulate == 0) update();
    }
    options.use_amp = before;
    options.recompute = recomputed_before;
    random.rank = 0;
    random.world = 1;
    note_weights();
    return outcome_;
  }

 private:
  void add_gradients(size_t b, const std::vector<int>& replicas) {
    const int64_t rows = run_.batches[b];
    const uint64_t first = StepContext::current().random.step;
    uint64_t number = 0;
    for (int64_t done = 0; done < rows; ++number) {
      const int64_t count = std::min(rows_of_micro_batch(run_), rows - done);
      std::vector<Tensor> inputs, labels;
      for (int replica : replicas) {
        const std::vector<Tensor> batch =
            batch_of(subject_.data, rows, b + 100 * static_cast<uint64_t>(replica), {}, run_.dtype);
        inputs.push_back(slice(batch[0], 0, done, done + count));
        labels.push_back(slice(batch[1], 0, done, done + count));
      }
      const std::vector<Tensor> part{concat(inputs, 0), concat(labels, 0)};
      commit();
      StepContext::current().random.step = first + number;
      const std::vector<Tensor> results = net_.forward(part);
      const double share = static_cast<double>(count * static_cast<int64_t>(replicas.size())) /
                           static_cast<double>(rows * run_.replicas * run_.accumulate);
      (results[0] * share).backward();
      commit();
      for (size_t k = 0; k < results.size(); ++k) outcome_["result " + std::to_string(k)].push_back(results[k].item());
      done += count;
    }
    StepContext::current().random.step = first + number;
  }

  void update() {
    const uint64_t next = StepContext::current().random.step;
    if (mean_) mean_->set_step(updates_++);
    if (run_.clip) optim::clip_grad_norm(optimizer_.parameters(), *run_.clip);
    optimizer_.step();
    optimizer_.clear_grad();
    StepContext::current().random.step = next;
  }

  void note_weights() {
    auto note = [&](const std::string& before, const std::string& name, const Variable& variable) {
      outcome_[before + name] = variable.value().to_vector<double>();
    };
    for (const auto& [name, variable] : net_.module.state_dict()) note("", name, variable);
    for (const auto& [name, variable] : optimizer_.state()) note("of ", name, variable);
    if (!mean_) return;
    for (const auto& [name, variable] : mean_->state()) note("mean of ", name, variable);
  }

  const Subject subject_;
  const Training run_;
  Net net_;
  optim::Optimizer optimizer_;
  std::optional<optim::WeightAverage> mean_;
  int64_t updates_ = 0;
  uint64_t first_step_ = 0;  // of the batch
  Outcome outcome_;
};

inline Outcome on_one_device(const Subject& subject, const Training& run) { return OnOneDevice(subject, run).train(); }

}  // namespace bonfire::in_stages
