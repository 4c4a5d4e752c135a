// Trains the small-image ResNet-18 on Fashion-MNIST, the same program on one device and on many: each rank trains on
// its own images, and gradients become their mean.
//
//   build/release/examples/resnet18 --data data/fashion_mnist                                            one device
//   ./bonfire launch --nproc_per_node 2 build/release/examples/resnet18 --data data/fashion_mnist        two
//
// batch_size is that of each rank, and lr is multiplied by the number of ranks. Rank 0 prints.
#include <bonfire/bonfire.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>

using namespace bonfire;

struct Settings {
  std::string place, data = "data/fashion_mnist";
  int epochs = 10, log_freq = 50;
  int64_t batch_size = 256, limit = 0;
  double lr = 0.05;
  uint64_t seed = 1;
  bool amp = false;
};

Settings parse(int argc, char** argv) {
  Settings settings;
  CLI::App app("Small-image ResNet-18 on Fashion-MNIST");
  app.add_option("--place", settings.place, "cpu, cpu:N, cuda or cuda:N (default: a GPU for each rank, else the CPU)");
  app.add_option("--data", settings.data, "folder with the four IDX files, plain or gzipped")->capture_default_str();
  app.add_option("--epochs", settings.epochs)->capture_default_str();
  app.add_option("--batch_size", settings.batch_size, "images a step, of each rank")->capture_default_str();
  app.add_option("--limit", settings.limit, "train on the first so many images only (default: all)");
  app.add_option("--lr", settings.lr, "learning rate of one rank; it is multiplied by their number")
      ->capture_default_str();
  app.add_option("--log_freq", settings.log_freq, "batches from one line to the next")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", settings.seed)->capture_default_str();
  app.add_flag("--amp", settings.amp, "compute in bf16");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return settings;
}

// Bytes → numbers around 0.
Tensor prepare(const Tensor& image) {
  return normalize_image(image, full({1}, 0.2860, DType::f32, image.device()),
                         full({1}, 0.3530, DType::f32, image.device()), {.channels_last = true});
}

// Loss, or right answers of a batch, of all ranks together: one all-reduce for the three.
struct Figures {
  std::array<double, 3> values{};
  const Figures& over_all_ranks(comm::Reduce reduce) {
    if (fleet::world_size() > 1) fleet::group().all_reduce({values.data(), values.size(), DType::f64}, reduce);
    return *this;
  }
};

void test_model(const models::ResNet& model, data::DataLoader& test, int epoch) {
  NoGrad no_grad;
  model.eval();
  Figures right;  // among the first, among the first five, images
  for (const auto& [image, label] : test.epoch(0)) {
    if (test.share().own == 0) continue;  // the last images are fewer than the ranks
    Tensor logits = model(prepare(image));
    Tensor first = top_k_correct(logits, label), fifth = top_k_correct(logits, label, 5);
    right.values[0] += first.item();
    right.values[1] += fifth.item();
    right.values[2] += static_cast<double>(label.size(0));
  }
  model.train();
  const auto& [first, fifth, count] = right.over_all_ranks(comm::Reduce::sum).values;
  if (fleet::rank() == 0) std::printf("[Epoch %d] test acc1: %.5f, acc5: %.5f\n", epoch, first / count, fifth / count);
}

void run(const Settings& settings) {
  fleet::init({.is_collective = true});
  const Device place = settings.place.empty() ? fleet::default_device() : parse_device(settings.place);
  const double lr = settings.lr * fleet::world_size();
  if (fleet::rank() == 0)
    std::printf("devices: %d, batch_size: %d on each, lr: %g\n", fleet::world_size(), int(settings.batch_size), lr);
  manual_seed(settings.seed);

  data::DataLoader train(data::load_mnist(settings.data, data::Split::train), {.batch_size = settings.batch_size,
                                                                               .sampler = fleet::sampler(),
                                                                               .shuffle = true,
                                                                               .drop_last = true,
                                                                               .limit = settings.limit,
                                                                               .seed = settings.seed,
                                                                               .device = place});
  data::DataLoader test(data::load_mnist(settings.data, data::Split::test),
                        {.batch_size = 200, .sampler = fleet::sampler(), .device = place});

  // The wrappers may come in either order.
  models::ResNet model = models::resnet18_small({.classes = 10, .in_channels = 1});
  model.to(place);
  optim::Momentum optimizer(model.parameters(), {.lr = lr, .momentum = 0.9, .weight_decay = 1e-4});
  optimizer = fleet::distributed_optimizer(optimizer, {.use_amp = settings.amp});
  model = fleet::distributed_model(model);

  for (int epoch = 1; epoch <= settings.epochs; ++epoch) {
    int batch = 0;
    for (const auto& [image, label] : train.epoch(epoch)) {
      Tensor logits = model(prepare(image));
      Tensor loss = nn::cross_entropy(logits, label);
      Tensor first = top_k_correct(logits, label), fifth = top_k_correct(logits, label, 5);
      loss.backward();
      optimizer.step();
      optimizer.clear_grad();
      if (++batch % settings.log_freq != 0) continue;
      const auto count = static_cast<double>(label.size(0));
      Figures mean{{loss.item(), first.item() / count, fifth.item() / count}};
      const auto& [mean_loss, acc1, acc5] = mean.over_all_ranks(comm::Reduce::mean).values;
      if (fleet::rank() == 0)
        std::printf("[Epoch %d, batch %d] loss: %.5f, acc1: %.5f, acc5: %.5f\n", epoch, batch, mean_loss, acc1, acc5);
    }
    test_model(model, test, epoch);
  }
  fleet::leave();
}

int main(int argc, char** argv) {
  Settings settings = parse(argc, argv);
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // whole lines as they come, also into a file
  try {
    run(settings);
  } catch (const Error& error) {
    std::fprintf(stderr, "resnet18: %s\n", error.what());
    return 1;
  }
}
