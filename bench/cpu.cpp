// Training steps on the CPU beside PyTorch's: both in turn, several rounds, medians.
//
//   bench_cpu [--peer-python PYTHON] [--json FILE] [--case TEXT,TEXT] [--batch N] [--dtype f32|bf16] [--threads 1,2]
//             [--rounds N] [--seconds S] [--variants nchw,channels-last,nchw-compiled,channels-last-compiled]
//             [--math exact,fast]
//
// A case is taken if its name holds one of the texts; --batch replaces the batch of each.
// PyTorch's best variant counts, and for bf16 its best of either dtype. Each side runs in processes of its own, pinned
// to as many cores as it may use threads, that sleep while the other has its turn. GFLOP/s are of the useful work (the
// direct algorithm's); the peak is what the better of the two reaches in a product of 2048 x 2048 matrices. Memory is
// the growth of peak RSS over five steps in a fresh process. `fast` is ours with strategy.fast_math: what the bound on
// rounding errors costs (--math exact leaves it out). Our kernels are chosen anew, with no record of earlier
// runs, and the seconds that takes are printed.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/base/random.h"
#include "bonfire/bonfire.h"
#include "bonfire/runtime/tuning.h"
#include "measure.h"

namespace {

using namespace bonfire;
using bench::Clock;
using bench::median;

// One training step (or product), and how much it does: samples, or GFLOP for a product.
struct Work {
  std::function<void()> step;
  double amount = 0;
};

Tensor normal_values(const Shape& shape) {
  std::vector<float> values(static_cast<size_t>(shape.count()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = normal_at(1, 1, i);
  return Tensor::from<float>(values, shape);
}

Tensor whole_values(const Shape& shape, int64_t below) {
  std::vector<int64_t> values(static_cast<size_t>(shape.count()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<int64_t>(uniform_at(1, 2, i) * static_cast<float>(below));
  return Tensor::from<int64_t>(values, shape);
}

// The model's output has as many rows as there are labels.
template <class Model, class Optimizer>
Work training(Model model, Optimizer optimizer, Tensor input, Tensor label) {
  auto step = compile(
      [model, optimizer = std::make_shared<Optimizer>(std::move(optimizer))](const Tensor& x, const Tensor& y) mutable {
        Tensor logits = model(x);
        Tensor loss = cross_entropy(reshape(logits, {y.size(0), logits.size(-1)}), y);
        loss.backward();
        optimizer->step();
        optimizer->clear_grad();
        return loss;
      });
  auto kept = std::make_shared<decltype(step)>(std::move(step));
  double samples = static_cast<double>(input.size(0));
  return {[=] { (*kept)(input, label); }, samples};
}

template <class Model>
Work with_momentum(Model model, const Shape& image, int64_t classes) {
  optim::Momentum optimizer(model.parameters(), {.lr = 0.001, .momentum = 0.9, .weight_decay = 1e-4});
  return training(model, std::move(optimizer), normal_values(image), whole_values({image[0]}, classes));
}

template <class Model>
Work with_adam(Model model, const Shape& tokens, int64_t vocabulary, int64_t labels, int64_t classes) {
  optim::Adam optimizer(model.parameters(), {.lr = 1e-4});
  return training(model, std::move(optimizer), whole_values(tokens, vocabulary), whole_values({labels}, classes));
}

Work matmul_work(DType dtype) {
  constexpr int64_t kSize = 2048;
  auto a = std::make_shared<Tensor>(cast(normal_values({kSize, kSize}), dtype));
  auto product = compile([](const Tensor& x, const Tensor& y) { return matmul(x, y); });
  auto kept = std::make_shared<decltype(product)>(std::move(product));
  return {[=] { (*kept)(*a, *a); }, 2e-9 * std::pow(static_cast<double>(kSize), 3)};
}

struct Case {
  std::string name, title;
  int64_t batch;
  double gigaflop;  // of one sample's training: forward, and twice that backward
  bool images;      // channels-last makes a difference
  Work (*make)(int64_t batch);
};

const std::vector<Case>& cases() {
  static const std::vector<Case> list = {
      {"resnet18_small", "small ResNet-18 28x28", 64, 2.73, true,
       [](int64_t batch) {
         return with_momentum(models::resnet18_small({.classes = 10, .in_channels = 1}), {batch, 1, 28, 28}, 10);
       }},
      {"mnist_cnn", "MNIST CNN", 64, 0.005, true,
       [](int64_t batch) {
         return with_momentum(models::mnist_cnn(), {batch, 1, 28, 28}, 10);
       }},
      {"bert_mini", "BERT-mini seq 128", 16, 8.4, false,
       [](int64_t batch) {
         return with_adam(models::bert_mini(), {batch, 128}, 30522, batch * 128, 30522);
       }},
      {"gpt2", "GPT-2 6x384 seq 256", 8, 46.9, false,
       [](int64_t batch) {
         auto model = models::gpt2({.layers = 6, .heads = 6, .width = 384, .context = 256});
         return with_adam(model, {batch, 256}, 50257, batch * 256, 50257);
       }},
      {"resnet50", "ResNet-50 224x224", 16, 24.6, true,
       [](int64_t batch) {
         return with_momentum(models::resnet50(), {batch, 3, 224, 224}, 1000);
       }},
      {"lstm", "LSTM 2x256 seq 100", 64, 0.63, false,
       [](int64_t batch) {
         auto model = models::lstm_classifier({.vocabulary = 10000, .embedding = 256, .hidden = 256});
         return with_adam(model, {batch, 100}, 10000, batch, 5);
       }},
  };
  return list;
}

Work make_work(const std::string& name, const std::string& dtype, int64_t batch) {
  manual_seed(1);
  use_mixed_precision(dtype == "bf16");
  if (name == "matmul") return matmul_work(dtype == "bf16" ? DType::bf16 : DType::f32);
  for (const Case& one : cases())
    if (one.name == name) return one.make(batch);
  throw_error<ConfigError>("[bench_cpu] there is no case {}", name);
}

// Ours, in a process of its own: answers each line (seconds to measure for) with the amount of work done in a second,
// and `tuning` with the seconds that choosing kernels took.
int serve(const std::string& name, const std::string& dtype, int64_t batch) {
  Work work = make_work(name, dtype, batch);
  auto steps = [&](int count) {
    for (int i = 0; i < count; ++i) work.step();
    synchronize();
  };
  steps(2);
  auto speed_over = [&](double span) {
    double done = 0;
    auto begin = Clock::now();
    while (done == 0 || bench::seconds(Clock::now() - begin) < span) {
      steps(2);  // two may be in flight, as in a loop that reads nothing
      done += 2 * work.amount;
    }
    return done / bench::seconds(Clock::now() - begin);
  };
  for (std::string line; std::getline(std::cin, line);) {
    std::printf("%f\n", line == "tuning" ? runtime::tuning_seconds() : speed_over(std::stod(line)));
    std::fflush(stdout);
  }
  return 0;
}

int report_memory(const std::string& name, const std::string& dtype, int64_t batch) {
  Work work = make_work(name, dtype, batch);
  int64_t before = bench::peak_kilobytes();
  for (int i = 0; i < 5; ++i) work.step();
  synchronize();
  std::printf("%ld\n", static_cast<long>(bench::peak_kilobytes() - before));
  return 0;
}

struct Settings {
  std::string self, peer, json, dtype;
  std::vector<std::string> only;
  std::vector<std::string> threads = {"1", "2"};
  std::vector<std::string> math = {"exact", "fast"};
  std::vector<std::string> variants = {"nchw", "channels-last", "nchw-compiled", "channels-last-compiled"};
  int rounds = 7;
  int batch = 0;              // 0: each case has its own
  std::string seconds = "1";  // of one turn
};

std::string our_command(const Settings& settings, const std::string& threads, const std::string& mode, const Case& one,
                        const std::string& dtype) {
  return "env BONFIRE_CPU_THREADS=" + threads + " " + bench::on_processors(std::stoi(threads)) + settings.self + " " +
         mode + " " + one.name + " " + dtype + " " + std::to_string(one.batch);
}

struct Variant {
  std::string name, dtype;
};

std::string peer_command(const Settings& settings, const std::string& threads, const Case& one,
                         const Variant& variant) {
  std::string command = "env OMP_NUM_THREADS=" + threads + " " + bench::on_processors(std::stoi(threads)) +
                        settings.peer + " " BONFIRE_SOURCE_DIR "/bench/peers/cpu.py " + one.name + " " + variant.dtype +
                        " " + threads + " " + std::to_string(one.batch);
  if (variant.name.find("channels-last") != std::string::npos) command += " --channels-last";
  if (variant.name.find("compiled") != std::string::npos) command += " --compile";
  return command + " 2>/dev/null";
}

std::vector<Variant> variants_of(const Settings& settings, const Case& one, const std::string& dtype) {
  std::vector<Variant> list;
  for (const std::string& name : settings.variants) {
    if (!one.images && name.find("channels-last") != std::string::npos) continue;
    list.push_back({name, "f32"});
    if (dtype == "bf16") list.push_back({name, "bf16"});
  }
  return list;
}

// The variant that is ahead after two turns of each. Speeds are kept: those in f32 serve the rows of bf16 too.
Variant fastest_variant(const Settings& settings, const std::string& threads, const Case& one,
                        const std::string& dtype) {
  static std::map<std::string, double> speeds;  // by command
  const std::vector<Variant> variants = variants_of(settings, one, dtype);
  if (variants.size() == 1) return variants[0];
  Variant best;
  double most = 0;
  for (const Variant& variant : variants) {
    std::string command = peer_command(settings, threads, one, variant);
    auto [known, fresh] = speeds.emplace(command, 0);
    double& speed = known->second;
    if (fresh) {
      bench::Worker worker(command);
      speed = std::max(worker.ask(settings.seconds), worker.ask(settings.seconds));
      std::fprintf(stderr, "  PyTorch %s %s %s: %.2f\n", one.name.c_str(), variant.name.c_str(), variant.dtype.c_str(),
                   speed);
    }
    if (speed > most) {
      most = speed;
      best = variant;
    }
  }
  return best;
}

struct Pair {
  double ours = 0, peer = 0;
  double tuning = 0;  // seconds
  double fast = 0;    // ours with fast_math
};

// A command that answers nothing ("true") counts as 0.
Pair in_turn(const Settings& settings, const std::string& our_command, const std::string& their_command,
             const std::string& fast_command = "true") {
  bench::Worker ours(our_command), theirs(their_command);
  std::vector<double> our_speeds, their_speeds, fast_speeds;
  double tuning = ours.ask("tuning");
  bench::Worker fast(fast_command);  // it chooses its kernels when we have chosen ours
  fast.ask("tuning");
  for (int round = 0; round < settings.rounds; ++round) {
    our_speeds.push_back(ours.ask(settings.seconds));
    their_speeds.push_back(theirs.ask(settings.seconds));
    fast_speeds.push_back(fast.ask(settings.seconds));
  }
  return {median(our_speeds), median(their_speeds), tuning, median(fast_speeds)};
}

// GFLOP/s of the better of the two in a large product.
double measured_peak(const Settings& settings, const std::string& threads, const std::string& dtype) {
  const Case product = {"matmul", "", 0, 0, false, nullptr};
  std::string theirs = settings.peer.empty() ? "true" : peer_command(settings, threads, product, {"nchw", dtype});
  Pair speeds = in_turn(settings, our_command(settings, threads, "--serve", product, dtype), theirs);
  return std::max(speeds.ours, speeds.peer);
}

// The peer's memory is that of its leaner eager variant: compiling is not training.
Pair memory_of(const Settings& settings, const std::string& threads, const Case& one, const std::string& dtype) {
  Pair kilobytes;
  kilobytes.ours = bench::number_of(our_command(settings, threads, "--memory", one, dtype));
  if (settings.peer.empty()) return kilobytes;
  for (const char* name : {"nchw", "channels-last"}) {
    double growth = bench::number_of(peer_command(settings, threads, one, {name, dtype}) + " --memory");
    if (growth > 0 && (kilobytes.peer == 0 || growth < kilobytes.peer)) kilobytes.peer = growth;
    if (!one.images) break;
  }
  return kilobytes;
}

double ratio_of(const Pair& pair) { return pair.peer > 0 ? pair.ours / pair.peer : 0; }

nlohmann::json measure(const Settings& settings, const std::string& threads, const Case& one, const std::string& dtype,
                       double peak) {
  Variant variant;
  std::string theirs = "true";
  if (!settings.peer.empty()) {
    variant = fastest_variant(settings, threads, one, dtype);
    theirs = peer_command(settings, threads, one, variant);
  }
  const bool fast = std::find(settings.math.begin(), settings.math.end(), "fast") != settings.math.end();
  Pair speeds = in_turn(settings, our_command(settings, threads, "--serve", one, dtype), theirs,
                        fast ? our_command(settings, threads, "--serve-fast", one, dtype) : "true");
  Pair memory = memory_of(settings, threads, one, dtype);
  double gigaflops = speeds.ours * one.gigaflop;
  const std::string title = one.title + " batch " + std::to_string(one.batch);
  std::printf("%-32s %s %-5s %10.2f %10.2f %10.2f %7.2f %9.1f %6.0f%% %9.0f %9.0f %6.2f %6.1f  %s %s\n", title.c_str(),
              threads.c_str(), dtype.c_str(), speeds.ours, speeds.fast, speeds.peer, ratio_of(speeds), gigaflops,
              peak > 0 ? gigaflops / peak * 100 : 0, memory.ours / 1024, memory.peer / 1024, ratio_of(memory),
              speeds.tuning, variant.name.c_str(), variant.dtype.c_str());
  std::fflush(stdout);
  return {{"case", title},
          {"threads", std::stoi(threads)},
          {"dtype", dtype},
          {"ours", speeds.ours},
          {"fast_math", speeds.fast},
          {"peer", speeds.peer},
          {"ratio", ratio_of(speeds)},
          {"gflops", gigaflops},
          {"peak_gflops", peak},
          {"rss_ours_kib", memory.ours},
          {"rss_peer_kib", memory.peer},
          {"rss_ratio", ratio_of(memory)},
          {"tuning_seconds", speeds.tuning},
          {"peer_variant", variant.name + " " + variant.dtype}};
}

// A folder that lives as long as this object and holds the record of what is chosen.
class FreshRecord {
 public:
  FreshRecord() : folder_(std::filesystem::temp_directory_path() / ("bonfire_bench_" + std::to_string(getpid()))) {
    setenv("BONFIRE_CACHE", folder_.c_str(), 1);
  }
  ~FreshRecord() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  FreshRecord(const FreshRecord&) = delete;
  FreshRecord& operator=(const FreshRecord&) = delete;

 private:
  std::filesystem::path folder_;
};

std::vector<Case> chosen_cases(const Settings& settings) {
  std::vector<Case> chosen;
  for (Case one : cases()) {
    bool wanted = settings.only.empty();
    for (const std::string& text : settings.only)
      wanted = wanted || one.name.find(text) != std::string::npos || one.title.find(text) != std::string::npos;
    if (settings.batch > 0) one.batch = settings.batch;
    if (wanted) chosen.push_back(std::move(one));
  }
  if (!chosen.empty()) return chosen;
  std::string names;
  for (const Case& one : cases()) names += (names.empty() ? "" : ", ") + one.name;
  throw_error<ConfigError>("[bench_cpu] --case names none of {}", names);
}

int run_all(const Settings& settings) {
  const std::vector<Case> chosen = chosen_cases(settings);
  FreshRecord record;
  nlohmann::json rows = nlohmann::json::array();
  std::printf("%-32s %s %-5s %10s %10s %10s %7s %9s %7s %9s %9s %6s %6s  %s\n", "training step, samples/s", "t",
              "dtype", "ours", "fast", "PyTorch", "ratio", "GFLOP/s", "peak", "MiB ours", "PyTorch", "ratio", "tuning",
              "PyTorch's best");
  for (const std::string& threads : settings.threads) {
    for (const char* dtype : {"f32", "bf16"}) {
      if (!settings.dtype.empty() && settings.dtype != dtype) continue;
      double peak = measured_peak(settings, threads, dtype);
      for (const Case& one : chosen) {
        rows.push_back(measure(settings, threads, one, dtype, peak));
        if (!settings.json.empty()) std::ofstream(settings.json) << rows.dump(1) << '\n';  // an interrupt loses one row
      }
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  settings.self = argv[0];
  std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (arguments.size() == 4 && arguments[0].starts_with("--serve")) {
      StepContext::current().options.fast_math = arguments[0] == "--serve-fast";
      return serve(arguments[1], arguments[2], std::stoll(arguments[3]));
    }
    if (arguments.size() == 4 && arguments[0] == "--memory")
      return report_memory(arguments[1], arguments[2], std::stoll(arguments[3]));
    CLI::App flags("Training steps of whole models, beside PyTorch's; lists are separated by commas", "bench_cpu");
    flags.add_option("--peer-python", settings.peer, "a Python that has PyTorch");
    flags.add_option("--json", settings.json, "a file for what was measured");
    flags.add_option("--case", settings.only, "models")->delimiter(',')->allow_extra_args(false);
    flags.add_option("--batch", settings.batch, "samples of a step; else each case has its own")
        ->check(CLI::PositiveNumber);
    flags.add_option("--dtype", settings.dtype, "f32 or bf16; else each case has its own")
        ->check(CLI::IsMember({"f32", "bf16"}));
    flags.add_option("--threads", settings.threads, "numbers of threads")->delimiter(',')->allow_extra_args(false);
    flags.add_option("--rounds", settings.rounds, "turns of each contestant")->check(CLI::PositiveNumber);
    flags.add_option("--seconds", settings.seconds, "of one turn");
    flags.add_option("--math", settings.math, "exact, fast")->delimiter(',')->allow_extra_args(false);
    flags.add_option("--variants", settings.variants, "of PyTorch: nchw, channels-last, with -compiled")
        ->delimiter(',')
        ->allow_extra_args(false);
    CLI11_PARSE(flags, argc, argv);
    return run_all(settings);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
