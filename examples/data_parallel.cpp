// MNIST CNN on one process or on many: each rank trains on its own part of every batch.
//
//   build/release/examples/data_parallel [STEPS]                                                one process
//   ./bonfire launch --nproc_per_node 2 build/release/examples/data_parallel [STEPS]            two
//
// The digits are drawn by the built-in generator, so no data is needed. Rank 0 prints.
#include <bonfire/bonfire.h>

#include <cstdio>
#include <cstdlib>

using namespace bonfire;

void train(int64_t steps) {
  constexpr int64_t kBatch = 128;  // of all ranks together
  data::DataLoader digits(std::make_shared<data::Glyphs>(),
                          {.batch_size = kBatch / fleet::world_size(), .sampler = fleet::sampler()});
  manual_seed(1);
  auto model = fleet::distributed_model(models::mnist_cnn());
  auto optimizer = fleet::distributed_optimizer(optim::Momentum(model.parameters(), {.lr = 0.02, .momentum = 0.9}));
  for (int64_t step = 0; step < steps; ++step) {
    auto [image, label] = digits.next();
    Tensor pixels =
        normalize_image(image, full({1}, 0.5, DType::f32), full({1}, 0.5, DType::f32), {.channels_last = true});
    Tensor loss = cross_entropy(model(pixels), label);
    (loss * digits.share().weight()).backward();  // the last batch of an epoch is not shared evenly
    optimizer.step();
    optimizer.clear_grad();
    if ((step + 1) % 50 != 0 && step + 1 != steps) continue;
    double mean = loss.item();
    if (fleet::world_size() > 1) fleet::group().all_reduce({&mean, 1, DType::f64}, comm::Reduce::mean);
    if (fleet::rank() == 0)
      std::printf("step: %ld, ranks: %d, loss is: %.4f\n", static_cast<long>(step + 1), fleet::world_size(), mean);
  }
}

int main(int argc, char** argv) try {
  fleet::init(argc, argv);
  train(argc > 1 ? std::atoi(argv[1]) : 200);
  fleet::leave();
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
