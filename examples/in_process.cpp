// MNIST CNN on several devices of one process: each has a copy of the model and trains on its part of every batch.
//
//   build/release/examples/in_process [STEPS] [DEVICE …]
//
// By default it takes 200 steps on cpu:0 and cpu:1, which share the cores.
// The digits are drawn by the built-in generator, so no data is needed.
#include <bonfire/bonfire.h>

#include <cstdio>
#include <cstdlib>

using namespace bonfire;

void train(int64_t steps, const std::vector<Device>& devices) {
  data::DataLoader digits(std::make_shared<data::Glyphs>(), {.batch_size = 128});  // of all devices together
  manual_seed(1);
  DataParallel parallel(
      models::mnist_cnn(),
      [](const auto& model) { return optim::Momentum(model.parameters(), {.lr = 0.02, .momentum = 0.9}); }, devices);
  auto step = parallel.compile([](const auto& model, auto& optimizer, const Tensor& image, const Tensor& label) {
    Tensor half = full({1}, 0.5, DType::f32, image.device());
    Tensor loss = cross_entropy(model(normalize_image(image, half, half, {.channels_last = true})), label);
    loss.backward();
    optimizer.step();
    optimizer.clear_grad();
    return loss;
  });
  for (int64_t i = 1; i <= steps; ++i) {
    auto [image, label] = digits.next();
    Tensor loss = step(image, label);
    if (i % 50 == 0 || i == steps)
      std::printf("step: %ld, devices: %zu, loss is: %.4f\n", static_cast<long>(i), devices.size(), loss.item());
  }
}

int main(int argc, char** argv) try {
  std::vector<Device> devices;
  for (int i = 2; i < argc; ++i) devices.push_back(parse_device(argv[i]));
  if (devices.empty()) devices = {parse_device("cpu:0"), parse_device("cpu:1")};
  train(argc > 1 ? std::atoi(argv[1]) : 200, devices);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
