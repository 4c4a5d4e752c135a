#pragma once
// DataParallel: one process trains on several devices. Each has a copy of the model's variables and an optimizer, and a
// thread; a batch is dealt out to them, and their gradients become that of the mean over the whole batch.
//
//   auto model = models::mnist_cnn();
//   DataParallel parallel(model, [](const auto& model) { return optim::SGD(model.parameters(), {.lr = 0.1}); },
//                         {parse_device("cpu:0"), parse_device("cpu:1")});
//   Tensor loss = parallel.step([](const auto& model, auto& optimizer, const Tensor& image, const Tensor& label) {
//     Tensor loss = cross_entropy(model(image), label);
//     loss.backward();
//     optimizer.step();
//     optimizer.clear_grad();
//     return loss;
//   }, image, label);                                     // mean over the whole batch
//   parallel.module().save("mnist.safetensors");          // the model that was wrapped
//   std::cout << parallel;                                // PyTorch's tree: DataParallel( (module): …
//
// DataParallel parallel(model) is on all GPUs, or the CPU where there is none, and for outputs only: it has no
// optimizer.
//
// The body runs on all devices at once, so it must change nothing outside; where it is, the batch tells and not a
// parameter. Of n devices the i-th gets the samples i, i + n, … of the batch; after balance_by_speed() a block of it,
// the larger the faster the device is. One that gets no sample computes with a stand-in that counts for nothing. What
// the body returns is put together on the first device: a number is the mean over all samples, a whole number the sum,
// and anything else has a row for each sample, in the order of the batch. A step that fails on one device fails on all,
// and so do later ones. Only one thread calls at a time. docs/data-parallel.md

#include <filesystem>
#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "bonfire/data/sampler.h"
#include "bonfire/graph/tensor.h"
#include "bonfire/nn/module.h"
#include "bonfire/optim/optimizer.h"
#include "bonfire/parallel/device_threads.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/runtime/compile.h"

namespace bonfire {

namespace detail {

class DeviceSpeeds;

// Steps whose batches are dealt out to the threads.
class DealtSteps {
 public:
  explicit DealtSteps(DeviceThreads& threads);
  ~DealtSteps();

  // Deals the rows of the batch out, calls body(place of the device, own rows) on all threads, and puts together what
  // they return.
  using Body = std::function<std::vector<Tensor>(size_t, std::span<const Tensor>)>;
  std::vector<Tensor> run(const Body& body, std::span<const Tensor> batch);

  void balance_by_speed();
  std::vector<int64_t> shares(int64_t samples) const;  // [device], of a batch of so many

 private:
  std::vector<data::Share> deal(int64_t samples) const;  // [device]

  DeviceThreads& threads_;
  std::unique_ptr<DeviceSpeeds> speeds_;  // with balance_by_speed()
};

std::vector<Device> all_gpus_or_cpu();

// A step's results as the type that its function returns.
template <class Result>
Result from_list(std::vector<Tensor> list) {
  if constexpr (std::is_same_v<Result, Tensor>) return std::move(list[0]);
  if constexpr (std::is_same_v<Result, std::vector<Tensor>>) return list;
}

}  // namespace detail

struct NoOptimizer {};

template <class Model, class Optimizer>
class DataParallel {
 public:
  // make_optimizer(model) is called for each device, and makes the optimizer of its copy. Every device begins with the
  // model's values. Parameters are frozen before.
  template <class MakeOptimizer>
  requires std::is_invocable_r_v<Optimizer, const MakeOptimizer&, const Model&> DataParallel(
      const Model& model, const MakeOptimizer& make_optimizer,
      const std::vector<Device>& devices = detail::all_gpus_or_cpu(), const DistributedStrategy& strategy = {})
      : DataParallel(model, make_optimizer, devices, &strategy) {}
  explicit DataParallel(const Model& model, const std::vector<Device>& devices = detail::all_gpus_or_cpu()) requires
      std::is_same_v<Optimizer, NoOptimizer>
      : DataParallel(
            model, [](const Model&) { return NoOptimizer(); }, devices, nullptr) {}
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // The model that was wrapped, which is the first device's. Its values are changed by load(), which gives them to all.
  const Model& module() const { return model_; }
  std::vector<nn::StateDict> copies() const {  // [device]: its parameters and buffers
    std::vector<nn::StateDict> all;
    threads_.for_each_copy([&](size_t) { all.push_back(model_.state_dict()); });
    return all;
  }
  const std::vector<Optimizer>& optimizers() const { return optimizers_; }  // [device]

  friend std::ostream& operator<<(std::ostream& out, const DataParallel& parallel) {  // PyTorch's tree
    return out << nn::tree_text("DataParallel", "", {{"module", to_string(parallel.model_)}});
  }

  // body(model, optimizer, batch…) returns a Tensor, a vector of them, or nothing.
  template <class Body, class... Batch>
  requires(sizeof...(Batch) > 0) auto step(const Body& body, const Batch&... batch) {
    using Places = std::index_sequence_for<Batch...>;
    const Tensor list[] = {Tensor(batch)...};
    auto part = [&](size_t place, std::span<const Tensor> own) { return as_list<Places>(body, place, own); };
    return detail::from_list<Result<Body, Places>>(steps_.run(part, list));
  }

  // The same as a function of the batch, whose body is traced once for each shape of it: see compile(). It must not
  // outlive this.
  template <class Body>
  auto compile(const Body& body) {
    return [this, body, steps = std::vector<CompiledStep>()](const auto&... batch) mutable {
      using Places = std::make_index_sequence<sizeof...(batch)>;
      while (steps.size() < optimizers_.size())
        steps.emplace_back([this, body, place = steps.size()](std::span<const Tensor> own) {
          return as_list<Places>(body, place, own);
        });
      const Tensor list[] = {Tensor(batch)...};
      auto part = [&](size_t place, std::span<const Tensor> own) { return steps[place].run(own); };
      return detail::from_list<Result<Body, Places>>(steps_.run(part, list));
    };
  }

  // The model's output for a whole batch, without gradients.
  Tensor operator()(const Tensor& batch) {
    auto forward = [](const Model& model, Optimizer&, const Tensor& own) -> Tensor {
      NoGrad no_grad;
      return model(own);
    };
    return step(forward, batch);
  }

  // From the next step on devices that are not equally fast share a batch by the speed that is measured in training
  // steps (balance: auto; parallel/balance.h). Gradients stay those of the mean over the whole batch.
  void balance_by_speed() { steps_.balance_by_speed(); }
  std::vector<int64_t> shares(int64_t samples) const { return steps_.shares(samples); }  // of such a batch, [device]

  // For all copies.
  void train(bool training = true) { model_.train(training); }
  void eval() { train(false); }
  void set_lr(double lr) {
    for (Optimizer& optimizer : optimizers_) optimizer.set_lr(lr);
  }
  nn::LoadReport load(const std::filesystem::path& file, nn::LoadOptions options = {}) {
    nn::LoadReport report;
    threads_.for_each_copy([&](size_t) { report = model_.load(file, options); });
    return report;
  }

 private:
  template <class MakeOptimizer>
  DataParallel(const Model& model, const MakeOptimizer& make_optimizer, const std::vector<Device>& devices,
               const DistributedStrategy* strategy)
      : model_(model), threads_(devices) {
    threads_.copy_variables_of(model_);
    threads_.for_each_copy([&](size_t) { optimizers_.push_back(make_optimizer(std::as_const(model_))); });
    threads_.run([&](size_t place) {
      fleet::distributed_model(model_);
      if constexpr (!std::is_same_v<Optimizer, NoOptimizer>)
        fleet::distributed_optimizer(optimizers_[place], *strategy);
    });
  }

  template <class Body, size_t... I>
  static auto call(const Body& body, const Model& model, Optimizer& optimizer, const Tensor* own,
                   std::index_sequence<I...>) {
    return body(model, optimizer, own[I]...);
  }
  // What a body returns for a batch of so many tensors.
  template <class Body, class Places>
  using Result = decltype(call(std::declval<const Body&>(), std::declval<const Model&>(), std::declval<Optimizer&>(),
                               nullptr, Places()));

  template <class Places, class Body>
  std::vector<Tensor> as_list(const Body& body, size_t place, std::span<const Tensor> own) {
    if constexpr (std::is_void_v<Result<Body, Places>>) {
      call(body, model_, optimizers_[place], own.data(), Places());
      return {};
    } else if constexpr (std::is_same_v<Result<Body, Places>, Tensor>) {
      return {call(body, model_, optimizers_[place], own.data(), Places())};
    } else {
      return call(body, model_, optimizers_[place], own.data(), Places());
    }
  }

  Model model_;
  std::vector<Optimizer> optimizers_;  // [device]
  detail::DeviceThreads threads_;      // ends before what it works on
  detail::DealtSteps steps_{threads_};
};

template <class Model, class MakeOptimizer>
requires std::is_invocable_v<const MakeOptimizer&, const Model&> DataParallel(const Model&, const MakeOptimizer&,
                                                                              const std::vector<Device>& = {},
                                                                              const DistributedStrategy& = {})
->DataParallel<Model, std::invoke_result_t<const MakeOptimizer&, const Model&>>;
template <class Model>
DataParallel(const Model&, const std::vector<Device>& = {}) -> DataParallel<Model, NoOptimizer>;

}  // namespace bonfire
