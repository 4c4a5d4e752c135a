#pragma once
// DataParallel: one process trains on several devices. Each has a copy of the model and of the optimizer, and a thread;
// a batch is dealt out to them, and their gradients become that of the mean over the whole batch.
//
//   DataParallel parallel([] { return models::mnist_cnn(); },
//                         [](const auto& model) { return optim::SGD(model.parameters(), {.lr = 0.1}); },
//                         {parse_device("cpu:0"), parse_device("cpu:1")});
//   Tensor loss = parallel.step([](const auto& model, auto& optimizer, const Tensor& image, const Tensor& label) {
//     Tensor loss = cross_entropy(model(image), label);
//     loss.backward();
//     optimizer.step();
//     optimizer.clear_grad();
//     return loss;
//   }, image, label);                                     // mean over the whole batch
//   parallel.module().save("mnist.safetensors");
//
// The body runs on all devices at once, so it must change nothing outside. Of n devices the i-th gets the samples i,
// i + n, … of the batch; after balance_by_speed() a block of it, the larger the faster the device is. One that gets no
// sample computes with a stand-in that counts for nothing. What the body returns is put together on the first device: a
// number is the mean over all samples, a whole number the sum, and anything else has a row for each sample, in the
// order of the batch. A step that fails on one device fails on all, and so do later ones. Only one thread calls at a
// time. docs/data-parallel.md

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "bonfire/graph/tensor.h"
#include "bonfire/nn/module.h"
#include "bonfire/optim/optimizer.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/runtime/compile.h"

namespace bonfire {

namespace detail {

// A thread for each device, each of them a rank of one group (fleet::rank()).
class DeviceThreads {
 public:
  // ConfigError without devices, for one that is named twice, and in a process that is one of several ranks itself.
  explicit DeviceThreads(const std::vector<Device>& devices);
  ~DeviceThreads();

  // Calls make() for each device, and puts the models, which share nothing, on them. All draw the same first values.
  void make_models(const std::function<nn::Module()>& make) const;
  // Calls body(place of the device) on all threads, and waits. Throws what the thread at fault has thrown.
  void run(const std::function<void(size_t)>& body);
  // Deals the rows of the batch out, calls body(place, own rows) on all threads, and puts together what they return.
  using Body = std::function<std::vector<Tensor>(size_t, std::span<const Tensor>)>;
  std::vector<Tensor> step(const Body& body, std::span<const Tensor> batch);

  void balance_by_speed();
  std::vector<int64_t> shares(int64_t samples) const;  // [device], of a batch of so many

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A step's results as the type that its function returns.
template <class Result>
Result from_list(std::vector<Tensor> list) {
  if constexpr (std::is_same_v<Result, Tensor>) return std::move(list[0]);
  if constexpr (std::is_same_v<Result, std::vector<Tensor>>) return list;
}

}  // namespace detail

template <class Model, class Optimizer>
class DataParallel {
 public:
  struct Replica {
    Model model;
    Optimizer optimizer;
  };

  // make_model() gives a new model at each call, make_optimizer(model) the optimizer of one. Every device begins with
  // the first one's values.
  template <class MakeModel, class MakeOptimizer>
  DataParallel(const MakeModel& make_model, const MakeOptimizer& make_optimizer, const std::vector<Device>& devices,
               const DistributedStrategy& strategy = {})
      : threads_(devices) {
    std::vector<Model> models;
    threads_.make_models([&]() -> nn::Module { return models.emplace_back(make_model()); });
    for (const Model& model : models) replicas_.push_back({model, make_optimizer(model)});
    threads_.run([&](size_t place) {
      fleet::distributed_model(replicas_[place].model);
      fleet::distributed_optimizer(replicas_[place].optimizer, strategy);
    });
  }
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // The plain model: the first device's. Its values are changed by load(), which gives them to all.
  const Model& module() const { return replicas_.front().model; }
  const std::vector<Replica>& replicas() const { return replicas_; }  // one a device

  // body(model, optimizer, batch…) returns a Tensor, a vector of them, or nothing.
  template <class Body, class... Batch>
  requires(sizeof...(Batch) > 0) auto step(const Body& body, const Batch&... batch) {
    using Places = std::index_sequence_for<Batch...>;
    const Tensor list[] = {Tensor(batch)...};
    auto part = [&](size_t place, std::span<const Tensor> own) { return as_list<Places>(body, replicas_[place], own); };
    return detail::from_list<Result<Body, Places>>(threads_.step(part, list));
  }

  // The same as a function of the batch, whose body is traced once for each shape of it: see compile(). It must not
  // outlive this.
  template <class Body>
  auto compile(const Body& body) {
    return [this, body, steps = std::vector<CompiledStep>()](const auto&... batch) mutable {
      using Places = std::make_index_sequence<sizeof...(batch)>;
      while (steps.size() < replicas_.size())
        steps.emplace_back([body, &replica = replicas_[steps.size()]](std::span<const Tensor> own) {
          return as_list<Places>(body, replica, own);
        });
      const Tensor list[] = {Tensor(batch)...};
      auto part = [&](size_t place, std::span<const Tensor> own) { return steps[place].run(own); };
      return detail::from_list<Result<Body, Places>>(threads_.step(part, list));
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
  void balance_by_speed() { threads_.balance_by_speed(); }
  std::vector<int64_t> shares(int64_t samples) const { return threads_.shares(samples); }  // of such a batch, [device]

  // For all copies.
  void train(bool training = true) {
    for (Replica& replica : replicas_) replica.model.train(training);
  }
  void eval() { train(false); }
  void set_lr(double lr) {
    for (Replica& replica : replicas_) replica.optimizer.set_lr(lr);
  }
  nn::LoadReport load(const std::filesystem::path& file, nn::LoadOptions options = {}) {
    nn::LoadReport report;
    for (Replica& replica : replicas_) report = replica.model.load(file, options);
    return report;
  }

 private:
  template <class Body, size_t... I>
  static auto call(const Body& body, Replica& replica, const Tensor* own, std::index_sequence<I...>) {
    return body(std::as_const(replica.model), replica.optimizer, own[I]...);
  }
  // What a body returns for a batch of so many tensors.
  template <class Body, class Places>
  using Result = decltype(call(std::declval<const Body&>(), std::declval<Replica&>(), nullptr, Places()));

  template <class Places, class Body>
  static std::vector<Tensor> as_list(const Body& body, Replica& replica, std::span<const Tensor> own) {
    if constexpr (std::is_void_v<Result<Body, Places>>) {
      call(body, replica, own.data(), Places());
      return {};
    } else if constexpr (std::is_same_v<Result<Body, Places>, Tensor>) {
      return {call(body, replica, own.data(), Places())};
    } else {
      return call(body, replica, own.data(), Places());
    }
  }

  std::vector<Replica> replicas_;
  detail::DeviceThreads threads_;  // ends before what it works on
};

template <class MakeModel, class MakeOptimizer, class... More>
DataParallel(const MakeModel&, const MakeOptimizer&, const std::vector<Device>&, const More&...)
    -> DataParallel<std::invoke_result_t<MakeModel>,
                    std::invoke_result_t<MakeOptimizer, const std::invoke_result_t<MakeModel>&>>;

}  // namespace bonfire
