// The trainer for a model, data and a task of one's own: here a small net learns the height of a hill from its place.
// It has all that `bonfire train` gives: progress, checkpoints, resume, TensorBoard, a report, several ranks.
//
//   build/release/examples/own_trainer [KEY=VALUE ...]
//   ./bonfire launch --nproc_per_node 2 build/release/examples/own_trainer [KEY=VALUE ...]
//
// A key is any of docs/configuration.md: epochs=20, lr=0.01, resume=auto, place=cpu:0,cpu:1.

#include <bonfire/bonfire.h>
#include <bonfire/train/trainer.h>
#include <fmt/core.h>

#include <cmath>
#include <cstring>

using namespace bonfire;

namespace {

data::Array array_of(std::initializer_list<float> values) {
  data::Array array{DType::f32, {static_cast<int64_t>(values.size())}, {}};
  array.bytes.resize(values.size() * sizeof(float));
  std::memcpy(array.bytes.data(), values.begin(), array.bytes.size());
  return array;
}

// Places and heights, each a function of its number.
class Hills final : public data::Dataset {
 public:
  Hills(int64_t size, uint64_t stream) : size_(size), stream_(stream) {}
  int64_t size() const override { return size_; }
  data::Sample get(int64_t index) const override {
    auto place = [&](uint64_t which) {
      return 2 * uniform_at(7, stream_, 2 * static_cast<uint64_t>(index) + which) - 1;
    };
    const float x = place(0), y = place(1);
    return {array_of({x, y}), array_of({std::sin(3 * x) * std::cos(2 * y)}), {}};
  }

 private:
  int64_t size_;
  uint64_t stream_;
};

class Net : public nn::Callable<Net> {
 public:
  Net() : Callable("Net") {}
  Tensor forward(const Tensor& place) const { return out_(tanh(second_(tanh(first_(place))))); }  // [N, 2] → [N, 1]

 private:
  nn::Linear first_ = register_module("first", nn::Linear({.in = 2, .out = 32}));
  nn::Linear second_ = register_module("second", nn::Linear({.in = 32, .out = 32}));
  nn::Linear out_ = register_module("out", nn::Linear({.in = 32, .out = 1}));
};

std::shared_ptr<const train::Task> regression() {
  const train::Metric error{.name = "rmse",
                            .title = "root mean square error",
                            .brief = "RMSE",
                            .unit = train::Metric::Unit::number,
                            .higher_is_better = false};
  return train::make_task(
      {.name = "regression",
       .unit = "places",
       .loss = [](const train::Outputs& outputs, const Tensor& height) { return mse_loss(outputs[0], height); },
       .metrics = {
           {.metric = error,
            .sum = [](const train::Outputs& outputs, const Tensor& height) { return sum(square(outputs[0] - height)); },
            .of_mean = [](double mean) { return std::sqrt(mean); }}}});
}

}  // namespace

int main(int argc, char** argv) try {
  std::vector<std::string> settings{"epochs=10", "batch_size=32", "optimizer=adam", "lr=0.01", "schedule=cosine"};
  settings.insert(settings.end(), argv + 1, argv + argc);
  const train::Config config = train::default_config(settings);
  fleet::init({.backend = config.backend, .collective_timeout = config.collective_timeout});
  manual_seed(config.seed);  // of the model's first weights

  train::Trainer trainer(config, Net(), regression());
  trainer.add(train::terminal_reporter());
  trainer.add(train::metrics_log());
  trainer.add(train::tensorboard_log());
  trainer.add(train::report_page());
  trainer.add({.evaluation = [](const train::EvaluationReport& report) {
    fmt::print("callback: epoch {}, rmse {:.5f}{}\n", report.epoch, report.score("rmse"), report.best ? ", best" : "");
  }});
  const train::RunEnds end =
      trainer.fit(std::make_shared<Hills>(2048, 0), std::make_shared<Hills>(500, 1), {.name = "hills"});
  if (fleet::rank() == 0) fmt::print("best rmse: {:.5f}\n", end.best_score);
  fleet::leave();
  return 0;
} catch (const Error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
