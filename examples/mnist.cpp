// Trains a small convolutional network on MNIST, saves its parameters, loads them again and tests both.
//
//   build/release/examples/mnist --data data/mnist --epochs 2 --optimizer momentum --place cpu
#include <bonfire/bonfire.h>

#include <CLI/CLI.hpp>
#include <cstdio>

using namespace bonfire;

struct Settings {
  std::string place, data = "data/mnist", optimizer = "momentum", output = "mnist.safetensors";
  int epochs = 2;
  int64_t batch_size = 64;
  double lr = 0;  // 0: what suits the optimizer
  uint64_t seed = 1;
  bool amp = false;
};

Settings parse(int argc, char** argv) {
  Settings settings;
  CLI::App app("MNIST CNN");
  app.add_option("--place", settings.place, "cpu, cpu:N, cuda or cuda:N (default: the first GPU, else the CPU)");
  app.add_option("--data", settings.data, "folder with the four IDX files, plain or gzipped")->capture_default_str();
  app.add_option("--epochs", settings.epochs)->capture_default_str();
  app.add_option("--batch_size", settings.batch_size)->capture_default_str();
  app.add_option("--optimizer", settings.optimizer)
      ->check(CLI::IsMember({"sgd", "momentum", "adagrad", "adam"}))
      ->capture_default_str();
  app.add_option("--lr", settings.lr, "learning rate (default: 0.1, 0.02, 0.02, 0.001 for these four)");
  app.add_option("--seed", settings.seed)->capture_default_str();
  app.add_option("--output", settings.output, "where the parameters go")->capture_default_str();
  app.add_flag("--amp", settings.amp, "compute in bf16");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return settings;
}

optim::Optimizer make_optimizer(const Settings& settings, const std::vector<Parameter>& parameters) {
  auto lr = [&](double usual) { return settings.lr > 0 ? settings.lr : usual; };
  if (settings.optimizer == "sgd") return optim::SGD(parameters, {.lr = lr(0.1)});
  if (settings.optimizer == "adagrad") return optim::Adagrad(parameters, {.lr = lr(0.02)});
  if (settings.optimizer == "adam") return optim::Adam(parameters, {.lr = lr(0.001)});
  return optim::Momentum(parameters, {.lr = lr(0.02), .momentum = 0.9});
}

// Bytes → numbers around 0.
Tensor prepare(const Tensor& image) {
  return normalize_image(image, full({1}, 0.1307, DType::f32, image.device()),
                         full({1}, 0.3081, DType::f32, image.device()), {.channels_last = true});
}

double accuracy(const models::MnistCnn& model, data::DataLoader& test) {
  NoGrad no_grad;
  model.eval();
  int64_t correct = 0;
  for (const auto& [image, label] : test.epoch(0))
    correct += top_k_correct(model(prepare(image)), label).item<int64_t>();
  model.train();
  return static_cast<double>(correct) / static_cast<double>(test.samples());
}

void run(const Settings& settings) {
  Device place = settings.place.empty() ? default_device() : parse_device(settings.place);
  use_mixed_precision(settings.amp);
  manual_seed(settings.seed);

  data::DataLoader train(data::load_mnist(settings.data, data::Split::train),
                         {.batch_size = settings.batch_size, .shuffle = true, .seed = settings.seed, .device = place});
  data::DataLoader test(data::load_mnist(settings.data, data::Split::test), {.batch_size = 500, .device = place});

  models::MnistCnn model = models::mnist_cnn();
  model.to(place);
  optim::Optimizer optimizer = make_optimizer(settings, model.parameters());

  for (int epoch = 0; epoch < settings.epochs; ++epoch) {
    int batch = 0;
    for (const auto& [image, label] : train.epoch(epoch)) {
      Tensor loss = nn::cross_entropy(model(prepare(image)), label);
      loss.backward();
      optimizer.step();
      optimizer.clear_grad();
      if (++batch % 200 == 0) std::printf("epoch: %d, batch: %d, loss is: %.4f\n", epoch, batch, loss.item());
    }
    std::printf("epoch: %d, test accuracy: %.4f\n", epoch, accuracy(model, test));
  }

  model.save(settings.output);
  models::MnistCnn loaded = models::mnist_cnn();
  loaded.to(place);
  loaded.load(settings.output);
  std::printf("saved to %s and loaded again, test accuracy: %.4f\n", settings.output.c_str(), accuracy(loaded, test));
}

int main(int argc, char** argv) {
  Settings settings = parse(argc, argv);
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // whole lines as they come, also into a file
  try {
    run(settings);
  } catch (const Error& error) {
    std::fprintf(stderr, "mnist: %s\n", error.what());
    return 1;
  }
}
