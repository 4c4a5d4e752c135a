// Trains the small-image ResNet-18 on Fashion-MNIST and reports top-1 and top-5 accuracy.
//
//   build/examples/resnet18 --data data/fashion_mnist --limit 6000 --epochs 2
#include <bonfire/bonfire.h>

#include <CLI/CLI.hpp>
#include <cstdio>

using namespace bonfire;

struct Settings {
  std::string place, data = "data/fashion_mnist";
  int epochs = 2, log_freq = 50;
  int64_t batch_size = 64, limit = 0;
  double lr = 0.05;
  uint64_t seed = 1;
  bool amp = false;
};

Settings parse(int argc, char** argv) {
  Settings settings;
  CLI::App app("Small-image ResNet-18 on Fashion-MNIST");
  app.add_option("--place", settings.place, "cpu, cpu:N, cuda or cuda:N (default: the first GPU, else the CPU)");
  app.add_option("--data", settings.data, "folder with the four IDX files, plain or gzipped")->capture_default_str();
  app.add_option("--epochs", settings.epochs)->capture_default_str();
  app.add_option("--batch_size", settings.batch_size)->capture_default_str();
  app.add_option("--limit", settings.limit, "train on the first so many images only (default: all)");
  app.add_option("--lr", settings.lr, "learning rate at the start; it falls to 0 along a cosine")
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

void test_model(const models::ResNet& model, data::DataLoader& test, int epoch) {
  NoGrad no_grad;
  model.eval();
  double first = 0, fifth = 0;
  for (const auto& [image, label] : test.epoch(0)) {
    Tensor logits = model(prepare(image));
    Tensor among_five = top_k_correct(logits, label, 5);
    first += top_k_correct(logits, label).item();
    fifth += among_five.item();
  }
  model.train();
  auto count = static_cast<double>(test.samples());
  std::printf("[Epoch %d] test acc1: %.5f, acc5: %.5f\n", epoch, first / count, fifth / count);
}

void run(const Settings& settings) {
  Device place = settings.place.empty() ? default_device() : parse_device(settings.place);
  passes::current_options().use_amp = settings.amp;
  manual_seed(settings.seed);

  data::DataLoader train(data::load_mnist(settings.data, data::Split::train), {.batch_size = settings.batch_size,
                                                                               .shuffle = true,
                                                                               .drop_last = true,
                                                                               .limit = settings.limit,
                                                                               .seed = settings.seed,
                                                                               .device = place});
  data::DataLoader test(data::load_mnist(settings.data, data::Split::test), {.batch_size = 200, .device = place});

  models::ResNet model = models::resnet18_small({.classes = 10, .in_channels = 1});
  model.to(place);
  optim::Momentum optimizer(model.parameters(), {.lr = settings.lr, .momentum = 0.9, .weight_decay = 5e-4});
  int64_t steps = settings.epochs * train.batches_per_epoch(), step = 0;
  optim::Schedule schedule{.kind = optim::ScheduleKind::cosine, .lr = settings.lr, .total_steps = double(steps)};

  for (int epoch = 1; epoch <= settings.epochs; ++epoch) {
    int batch = 0;
    for (const auto& [image, label] : train.epoch(epoch)) {
      optimizer.set_lr(schedule.at(double(step++)));
      Tensor logits = model(prepare(image));
      Tensor loss = nn::cross_entropy(logits, label);
      Tensor first = top_k_correct(logits, label), fifth = top_k_correct(logits, label, 5);
      loss.backward();
      optimizer.step();
      optimizer.clear_grad();
      if (++batch % settings.log_freq != 0) continue;
      auto count = static_cast<double>(label.size(0));
      std::printf("[Epoch %d, batch %d] loss: %.5f, acc1: %.5f, acc5: %.5f\n", epoch, batch, loss.item(),
                  first.item() / count, fifth.item() / count);
    }
    test_model(model, test, epoch);
  }
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
