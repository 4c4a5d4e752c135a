// A rank of trainings that any number of ranks should do alike: each step's batch is the same, however it is shared.
//   equality_program WHERE BATCH STEPS FILE [fused|unfused] [flat|hierarchical] [gpu|mixed]
// WHERE is a backend, or "threads:4" for ranks in one process. gpu: all ranks on the first GPU; mixed: every other one.
// The first rank writes FILE: of each net the losses of all samples, step by step, and the gradients of the first step.
// Nets with ReLU, which drift apart by rounding alone, do 5 steps.

#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "bonfire/base/random.h"
#include "bonfire/bonfire.h"
#include "bonfire/comm/local/local_group.h"

namespace {

using namespace bonfire;

constexpr int64_t kSide = 28;  // of an image

// tanh and average pools, which let rounding grow no faster than it must; with batch norm or without.
class SmoothNet : public nn::Callable<SmoothNet> {
 public:
  explicit SmoothNet(bool normed) : Callable("SmoothNet"), normed_(normed) {
    if (!normed) return;
    norm1_ = register_module("norm1", nn::BatchNorm2d({.channels = 8}));
    norm2_ = register_module("norm2", nn::BatchNorm2d({.channels = 16}));
  }
  Tensor forward(const Tensor& x) const {  // [N, 1, 28, 28]
    Tensor y = conv1_(avg_pool2d(x, {.kernel = {2}}));
    y = avg_pool2d(tanh(normed_ ? norm1_(y) : y), {.kernel = {2}});  // [N, 8, 7, 7]
    y = conv2_(y);
    return fc_(flatten(tanh(normed_ ? norm2_(y) : y), 1));
  }

 private:
  bool normed_;
  nn::Conv2d conv1_ = register_module("conv1", nn::Conv2d({.in = 1, .out = 8, .kernel = {3}, .padding = {1}}));
  nn::Conv2d conv2_ = register_module("conv2", nn::Conv2d({.in = 8, .out = 16, .kernel = {3}, .padding = {1}}));
  nn::BatchNorm2d norm1_{{.channels = 8}}, norm2_{{.channels = 16}};
  nn::Linear fc_ = register_module("fc", nn::Linear({.in = 784, .out = 10}));
};

struct Share {
  int64_t first, count;  // samples of a step's batch
  Device device;
};

Tensor images(int64_t step, const Share& share) {
  constexpr int64_t kPixels = kSide * kSide;
  std::vector<float> pixels(static_cast<size_t>(share.count * kPixels));
  for (size_t i = 0; i < pixels.size(); ++i) {
    const size_t at = static_cast<size_t>(share.first * kPixels) + i;
    // Classes differ in their mean, so there is something to learn, and statistics of a part are not the whole's.
    const auto mean = 0.2F * static_cast<float>(at / kPixels % 10);
    pixels[i] = normal_at(3, static_cast<uint64_t>(step), at) + mean;
  }
  return Tensor::from<float>(pixels, {share.count, 1, kSide, kSide}, share.device);
}

Tensor labels(const Share& share) {
  std::vector<int64_t> classes(static_cast<size_t>(share.count));
  for (size_t i = 0; i < classes.size(); ++i) classes[i] = (share.first + static_cast<int64_t>(i)) % 10;
  return Tensor::from<int64_t>(classes, {share.count}, share.device);
}

struct Course {
  int64_t steps;
  double lr;
  DistributedStrategy strategy;
};

template <class Net>
nlohmann::json train(const Net& plain, const Course& course, const Share& share) {
  plain.to(share.device);
  Net model = fleet::distributed_model(plain);
  auto optimizer = fleet::distributed_optimizer(optim::Momentum(model.parameters(), {.lr = course.lr, .momentum = 0.9}),
                                                course.strategy);
  std::vector<double> losses;
  std::vector<float> gradients;
  for (int64_t step = 0; step < course.steps; ++step) {
    Tensor loss = cross_entropy(model(images(step, share)), labels(share));
    loss.backward();
    for (const Variable& parameter : model.parameters()) {
      if (step > 0) break;
      const std::vector<std::byte> bytes = parameter.grad_variable().save();
      const size_t before = gradients.size();
      gradients.resize(before + bytes.size() / sizeof(float));
      std::memcpy(gradients.data() + before, bytes.data(), bytes.size());
    }
    optimizer.step();
    optimizer.clear_grad();
    double mean = loss.item();
    fleet::group().all_reduce({&mean, 1, DType::f64}, comm::Reduce::mean);
    losses.push_back(mean);
  }
  return {{"losses", losses}, {"gradients", gradients}};
}

struct Task {
  int64_t batch, steps;
  std::string file;
  DistributedStrategy strategy = {};
  std::string devices = {};

  Device device(int cpu_index) const {
    const bool on_gpu = devices == "gpu" || (devices == "mixed" && fleet::rank() % 2 == 0);
    return on_gpu ? Device{DeviceType::cuda, 0} : Device{DeviceType::cpu, static_cast<int16_t>(cpu_index)};
  }
};

void train_all(const Task& task, const Device& device) {
  const int64_t count = task.batch / fleet::world_size();
  const Share share{count * fleet::rank(), count, device};
  const DistributedStrategy& strategy = task.strategy;
  DistributedStrategy normed = strategy;
  normed.sync_batch_norm = true;
  manual_seed(5 + static_cast<uint64_t>(fleet::rank()));  // only rank 0's weights count
  nlohmann::json all;
  all["smooth"] = train(SmoothNet(false), {task.steps, 0.02, strategy}, share);
  all["normed"] = train(SmoothNet(true), {task.steps, 0.004, normed}, share);  // a larger rate shakes: rounding grows
  all["mnist_cnn"] = train(models::mnist_cnn(), {5, 0.001, strategy}, share);
  all["lenet"] = train(models::lenet(), {5, 0.001, strategy}, share);
  if (fleet::rank() == 0) std::ofstream(task.file) << all;
  fleet::leave();
}

void train_threads(int ranks, const Task& task) {
  auto groups = comm::local_groups(ranks, {.timeout = std::chrono::seconds(60)});
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      fleet::join(groups[static_cast<size_t>(r)]);
      train_all(task, task.device(r));
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string where = argv[1];
  Task task{.batch = std::stoi(argv[2]), .steps = std::stoi(argv[3]), .file = argv[4]};
  for (const std::string& option : std::vector<std::string>(argv + 5, argv + argc)) {
    if (option == "unfused") task.strategy.fuse_all_reduce_ops = false;
    if (option == "hierarchical") task.strategy.use_hierarchical_allreduce = true;
    if (option == "gpu" || option == "mixed") task.devices = option;
  }
  if (where.starts_with("threads:")) {
    train_threads(std::stoi(where.substr(8)), task);
  } else {
    fleet::init({.backend = where});
    train_all(task, task.device(0));
  }
  return 0;
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
