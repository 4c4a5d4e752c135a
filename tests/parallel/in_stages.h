#pragma once
// Small models that are trained in stages by threads as ranks, and on one device that adds up the gradients of as many
// micro-batches: what both end with is compared.
//
//   expect_same_as_one_device(small_vgg(), {.cut = {{"features.4"}}}, 2, "two stages");

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <thread>

#include "bonfire/comm/local/local_group.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/parallel/gather.h"
#include "bonfire/parallel/tensor_split.h"
#include "tests/parallel/one_device.h"

namespace bonfire::in_stages {

inline bool all_meshes() { return std::getenv("BONFIRE_MESHES") != nullptr; }

// Ranks along the tensor axis have parts of it, or the same bits.
inline std::vector<double> whole_of(const Variable& variable) {
  if (fleet::mesh().size(Axis::tensor) == 1) return variable.value().to_vector<double>();
  const std::vector<std::byte> all = fleet::gather(fleet::group(Axis::tensor), variable.name(), variable.dtype(),
                                                   variable.slice(), variable.save_stored());
  return Tensor::from_bytes(all, {variable.shape(), variable.dtype(), {}}).to_vector<double>();
}

// What a rank holds, and whether it holds nothing else.
class OnStage {
 public:
  OnStage(const Subject& subject, const Training& run, Device device)
      : subject_(subject), run_(run), device_(device), net_(make_net(subject, run)) {
    net_.module.to(device);
    if (fleet::mesh().size(Axis::tensor) > 1) fleet::share_out_layers(net_.module, {.split = subject.split});
    DistributedStrategy strategy;
    if (run.mixed_precision) strategy.use_amp = true;
    if (run.sync_batch_norm) strategy.sync_batch_norm = true;
    strategy.accumulate_steps = run.accumulate;
    if (!run.recompute.empty()) strategy.use_recompute = true;
    if (!run.recompute.empty()) strategy.recompute_segments = run.recompute;
    optimizer_.emplace(fleet::distributed_optimizer(optimizer_for(run, net_.module), strategy));
    stages_ = std::make_unique<pipeline::Pipeline>(net_.module, *optimizer_, net_.forward,
                                                   pipeline::PipelineOptions{.micro_batches = run.micro_batches,
                                                                             .schedule = run.schedule,
                                                                             .chunks = run.chunks,
                                                                             .cut = run.cut,
                                                                             .clip_grad_norm = run.clip});
  }

  Outcome train() {
    begin_mean();
    for (size_t b = 0; b < run_.batches.size(); ++b) {
      if (mean_) mean_->set_step(static_cast<int64_t>(b) / run_.accumulate);
      const std::vector<Tensor> results = stages_->train(batch(b));
      for (size_t k = 0; k < results.size(); ++k)
        for (double one : results[k].to_vector<double>()) outcome_["result " + std::to_string(k)].push_back(one);
    }
    synchronize();
    for (const auto& [name, variable] : net_.module.state_dict()) note_weight(name, variable);
    expect_nothing_else();
    return outcome_;
  }

  const pipeline::Pipeline& stages() const { return *stages_; }

 private:
  std::vector<Tensor> batch(size_t b) const {
    const auto replica = static_cast<uint64_t>(fleet::mesh().place(Axis::data));
    return batch_of(subject_.data, run_.batches[b], b + 100 * replica, device_, run_.dtype);
  }

  void begin_mean() {
    if (!run_.mean) return;
    std::vector<TensorSpec> specs;
    for (const Tensor& input : batch(0)) specs.push_back(input.spec());
    stages_->prepare(specs);
    mean_.emplace(net_.module, *optimizer_, *run_.mean, [this](const Variable& one) { return is_here(one); });
  }

  bool is_here(const Variable& variable) const { return stages_->holds(variable) || stages_->owns(variable); }

  void note_weight(const std::string& name, const Variable& variable) {
    if (!is_here(variable)) {
      others_[&variable.state()] = name;
      others_[&variable.grad_variable().state()] = name + "'s gradient";
      for (const auto& [state_name, state] : optimizer_->state_of(variable)) others_[&state.state()] = state_name;
    } else {
      outcome_[name] = whole_of(variable);
      expect_parts_alone(variable);
      for (const auto& [state_name, state] : optimizer_->state_of(variable))
        outcome_["of " + state_name] = whole_of(state);
    }
    if (!mean_) return;
    for (const auto& [mean_name, mean] : mean_->state()) {
      if (mean_name != name) continue;
      if (!is_here(variable)) others_[&mean.state()] = "the mean of " + name;
      if (is_here(variable)) outcome_["mean of " + name] = whole_of(mean);
    }
  }

  // Of what this stage holds: memory for this rank's part, of gradient and states too.
  void expect_parts_alone(const Variable& variable) const {
    const int parts = fleet::mesh().size(Axis::tensor);
    if (parts == 1) return;
    int64_t count = variable.shape().count();
    for (const fleet::SharedOut& one : fleet::tensor_splits(net_.module, subject_.split, parts).shared)
      if (one.variable == variable) count /= parts;
    EXPECT_EQ(variable.stored_spec().shape.count(), count) << variable.name();
    EXPECT_EQ(variable.grad_variable().stored_spec().shape.count(), count) << variable.name();
    for (const auto& [name, state] : optimizer_->state_of(variable))
      EXPECT_EQ(state.stored_spec().shape.count(), count) << name;
  }

  void expect_nothing_else() const {
    for (const auto& [state, name] : others_) {
      EXPECT_FALSE(state->has_values) << name << " has values on rank " << stages_->rank();
      EXPECT_FALSE(state->buffer && state->buffer.storage->is_allocated())
          << name << " has memory on rank " << stages_->rank();
    }
  }

  const Subject subject_;
  const Training run_;
  Device device_;
  Net net_;
  std::optional<optim::Optimizer> optimizer_;
  std::unique_ptr<pipeline::Pipeline> stages_;
  std::optional<optim::WeightAverage> mean_;
  std::map<const VariableState*, std::string> others_;
  Outcome outcome_;
};

// Calls body(device) on threads as ranks; what each has thrown.
inline std::vector<std::string> errors_on_ranks(int world, const MeshSizes& sizes,
                                                const std::function<void(Device)>& body) {
  auto groups = comm::local_groups(world, {.timeout = std::chrono::seconds(60)});
  std::vector<std::string> said(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      const auto i = static_cast<size_t>(rank);
      fleet::join(groups[i], sizes);
      try {
        body({DeviceType::cpu, static_cast<int16_t>(rank)});
      } catch (const Error& error) {
        said[i] = error.what();
      }
      try {
        fleet::leave();
      } catch (const Error&) {  // a rank has failed, and was named before
      }
    });
  for (std::thread& thread : threads) thread.join();
  return said;
}

inline std::vector<Outcome> on_stages(const Subject& subject, const Training& run, const MeshSizes& sizes,
                                      std::vector<std::string>* errors = nullptr) {
  const int world = std::max(1, sizes.data) * sizes.pipeline * sizes.tensor;
  std::vector<Outcome> outcomes(static_cast<size_t>(world));
  const std::vector<std::string> said = errors_on_ranks(world, sizes, [&](Device device) {
    outcomes[static_cast<size_t>(device.index)] = OnStage(subject, run, device).train();
  });
  for (size_t i = 0; i < said.size() && errors == nullptr; ++i) EXPECT_EQ(said[i], "") << "rank " << i;
  if (errors != nullptr) *errors = said;
  return outcomes;
}

// --- what is compared ------------------------------------------------------------------------------------------------

inline double usual_tolerance(const Training& run) { return run.dtype == DType::f64 ? 1e-9 : 1e-4; }

inline void expect_near(const Outcome& found, const Outcome& expected, const std::string& what,
                        double tolerance = 1e-4) {
  for (const auto& [name, values] : found) {
    ASSERT_TRUE(expected.contains(name)) << what << ", " << name;
    const std::vector<double>& wanted = expected.at(name);
    ASSERT_EQ(values.size(), wanted.size()) << what << ", " << name;
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(values[i], wanted[i], tolerance * std::max(1.0, std::abs(wanted[i])))
          << what << ", " << name << " at " << i;
  }
}

// Together the stages have everything that one device has.
inline void expect_all(const std::vector<Outcome>& stages, const Outcome& expected, const std::string& what) {
  for (const auto& value : expected) {
    const std::string& name = value.first;
    if (name.starts_with("of step")) continue;
    EXPECT_TRUE(std::any_of(stages.begin(), stages.end(), [&](const Outcome& one) { return one.contains(name); }))
        << what << ": nobody has " << name;
  }
}

// Of several replicas each has losses and running statistics of its own.
inline void leave_out_what_replicas_have(Outcome& one) {
  std::erase_if(one, [](const auto& named) {
    return named.first.starts_with("result") || named.first.find("running") != std::string::npos ||
           named.first.find("num_batches") != std::string::npos;
  });
}

inline void expect_same_as_one_device(const Subject& subject, const Training& run, const MeshSizes& sizes,
                                      const std::string& what) {
  Outcome expected = on_one_device(subject, run);
  std::vector<Outcome> found = on_stages(subject, run, sizes);
  if (run.replicas > 1) leave_out_what_replicas_have(expected);
  for (Outcome& one : found) {
    if (run.replicas > 1) leave_out_what_replicas_have(one);
    expect_near(one, expected, what, usual_tolerance(run));
  }
  expect_all(found, expected, what);
}

inline void expect_same_as_one_device(const Subject& subject, const Training& run, int stages,
                                      const std::string& what) {
  expect_same_as_one_device(subject, run, {.pipeline = stages}, what);
}

}  // namespace bonfire::in_stages
