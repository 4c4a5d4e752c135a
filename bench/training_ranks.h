#pragma once
// Whole training steps of data parallel ranks, for bench_comm: what communication costs a step of the small ResNet-18
// on two ranks of one host and of two, and how soon eight ranks have done their first step.
//
// A rank is this program with --train. Rank 0 answers each line ("alone 5": what to do, and how often) with
// milliseconds, which all ranks take together:
//   alone     steps whose gradients stay where they are made
//   together  steps whose gradients become their mean
//   forward   only the loss
//   reduce    all-reduces as large as the gradients, and nothing else

#include <array>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "bonfire/base/random.h"
#include "bonfire/bonfire.h"
#include "bonfire/comm/store_server.h"
#include "measure.h"
#include "two_namespaces.h"

namespace bench {

using namespace bonfire;

inline Tensor pictures(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count) * 28 * 28);
  for (size_t i = 0; i < values.size(); ++i) values[i] = normal_at(1, static_cast<uint64_t>(fleet::rank()), i);
  return Tensor::from<float>(values, {count, 1, 28, 28});
}

inline Tensor labels(int64_t count) {
  std::vector<int64_t> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>(uniform_at(1, 2, i) * 10);
  return Tensor::from<int64_t>(values, {count});
}

inline optim::Momentum momentum(const nn::Module& model) {
  return optim::Momentum(model.parameters(), {.lr = 0.001, .momentum = 0.9, .weight_decay = 1e-4});
}

template <class Model>
std::function<void()> training_step(Model model, optim::Momentum optimizer, const Tensor& image, const Tensor& label) {
  auto step = std::make_shared<decltype(compile(std::function<Tensor(const Tensor&, const Tensor&)>()))>(compile(
      std::function<Tensor(const Tensor&, const Tensor&)>([model, optimizer](const Tensor& x, const Tensor& y) mutable {
        Tensor loss = cross_entropy(model(x), y);
        loss.backward();
        optimizer.step();
        optimizer.clear_grad();
        return loss;
      })));
  return [=] { (*step)(image, label); };
}

// What a rank can be asked to do.
class TrainingRank {
 public:
  static constexpr int64_t kBatch = 64;

  TrainingRank() {
    auto plain = models::resnet18_small({.classes = 10, .in_channels = 1});
    auto model = fleet::distributed_model(models::resnet18_small({.classes = 10, .in_channels = 1}));
    Tensor image = pictures(kBatch), label = labels(kBatch);
    size_t numbers = 0;
    for (const Variable& parameter : plain.parameters()) numbers += static_cast<size_t>(parameter.shape().count());
    gradients_ = fleet::group().buffer(numbers * sizeof(float));
    std::memset(gradients_.get(), 0, numbers * sizeof(float));
    work_["alone"] = training_step(plain, momentum(plain), image, label);
    work_["together"] = training_step(model, fleet::distributed_optimizer(momentum(model)), image, label);
    work_["forward"] = [=] {
      NoGrad off;
      cross_entropy(plain(image), label).item();
    };
    work_["reduce"] = [this, numbers] {
      fleet::group().all_reduce({gradients_.get(), numbers, DType::f32}, comm::Reduce::mean);
    };
    for (auto& [name, step] : work_)
      for (int i = 0; i < 2; ++i) step();
    synchronize();
  }

  double milliseconds(const std::string& what, int64_t times) {
    const std::function<void()>& step = work_.at(what);
    fleet::group().barrier();
    auto begin = Clock::now();
    for (int64_t i = 0; i < times; ++i) step();
    synchronize();
    fleet::group().barrier();
    return 1e3 * seconds(Clock::now() - begin) / static_cast<double>(times);
  }

 private:
  std::map<std::string, std::function<void()>> work_;
  comm::GroupBuffer gradients_;
};

// Each rank on a processor of its own where there are enough.
inline int be_training_rank(const std::string& backend) {
  pin(std::atoi(std::getenv("RANK")));
  fleet::init({.backend = backend});
  TrainingRank rank;
  while (true) {
    std::array<char, 64> line{};
    std::string typed;
    if (fleet::rank() == 0 && std::getline(std::cin, typed)) typed.copy(line.data(), line.size() - 1);
    fleet::group().broadcast({line.data(), line.size(), DType::u8}, 0);
    std::istringstream words(line.data());
    std::string what;
    int64_t times = 0;
    if (!(words >> what >> times)) break;
    double taken = rank.milliseconds(what, times);
    if (fleet::rank() == 0) std::printf("%f\n", taken);
    std::fflush(stdout);
  }
  fleet::leave();
  return 0;
}

// The first step of the MNIST CNN on as many ranks as there are.
inline int do_first_step() {
  fleet::init();
  auto model = fleet::distributed_model(models::mnist_cnn());
  auto step = training_step(model, fleet::distributed_optimizer(momentum(model)), pictures(64), labels(64));
  step();
  synchronize();
  fleet::group().barrier();
  if (fleet::rank() == 0) std::printf("done\n");
  std::fflush(stdout);
  fleet::leave();
  return 0;
}

// Two network namespaces with a link of 1 Gbit/s between, 10.84.0.1 and 10.84.0.2.
class SlowLink {
 public:
  SlowLink() {
    ready_ = hosts_.ready() &&
             hosts_.run(
                 "ip link add Nx netns Na type veth peer name Ny netns Nb && "
                 "ip -n Na addr add 10.84.0.1/24 dev Nx && ip -n Nb addr add 10.84.0.2/24 dev Ny && "
                 "for end in a:x b:y; do ns=N${end%:*} link=N${end#*:}; ip -n $ns link set $link up && "
                 "ip -n $ns link set lo up && tc -n $ns qdisc add dev $link root tbf rate 1gbit burst 512kb latency "
                 "50ms || exit 1; done");
  }
  bool ready() const { return ready_; }
  std::string inside(int rank) const { return hosts_.inside(rank); }

 private:
  TwoNamespaces hosts_;
  bool ready_ = false;
};

// Two ranks, of which rank 0 is asked.
class TrainingTeam {
 public:
  TrainingTeam(const std::string& self, const std::string& backend, const SlowLink* link) {
    std::string address = link != nullptr ? "10.84.0.1" : "127.0.0.1";
    std::string port = link != nullptr ? "29511" : std::to_string(comm::serve_store({})->port());
    auto command = [&](int rank) {
      std::string place = link != nullptr ? link->inside(rank) + "env LOCAL_RANK=0 LOCAL_WORLD_SIZE=1"
                                          : "env LOCAL_RANK=" + std::to_string(rank) + " LOCAL_WORLD_SIZE=2";
      return on_processors(2) + place + " RANK=" + std::to_string(rank) + " WORLD_SIZE=2 MASTER_ADDR=" + address +
             " MASTER_PORT=" + port + " BONFIRE_CPU_THREADS=1 " + self + " --train " + backend;
    };
    other_ = std::make_unique<Worker>(command(1));
    lead_ = std::make_unique<Worker>(command(0));
  }
  ~TrainingTeam() { lead_.reset(); }  // whose end is told to the other
  TrainingTeam(const TrainingTeam&) = delete;
  TrainingTeam& operator=(const TrainingTeam&) = delete;

  double ask(const std::string& what, int times) { return lead_->ask(what + " " + std::to_string(times)); }

 private:
  std::unique_ptr<Worker> other_, lead_;
};

struct StepSettings {
  std::string self, peer;
  int rounds = 5;
};

inline void measure_one_host(const StepSettings& settings, nlohmann::json& rows) {
  TrainingTeam ours(settings.self, "shm", nullptr);
  std::unique_ptr<Worker> peer;
  std::vector<std::string> questions{"alone", "together"};
  if (!settings.peer.empty()) {
    peer = std::make_unique<Worker>(on_processors(2) + settings.peer +
                                    " " BONFIRE_SOURCE_DIR "/bench/peers/training_ranks.py 2 2>/dev/null");
    questions.emplace_back("ddp");
  }
  Turns times(questions, settings.rounds,
              [&](const std::string& question) { return question == "ddp" ? peer->ask("1") : ours.ask(question, 1); });
  const double share = times.ratio("alone", "together"), faster = peer ? times.ratio("ddp", "together") : 0;
  std::printf(
      "small ResNet-18 f32, 2 ranks x 1 thread x batch 64: %.1f ms a step, without communication %.1f ms: "
      "%.3f x (goal 0.97)\n",
      times["together"], times["alone"], share);
  if (peer) std::printf("  PyTorch DDP (Gloo) %.1f ms: %.2f x (goal 1.5)\n", times["ddp"], faster);
  rows.push_back({{"case", "small ResNet-18 f32, 2 ranks x 1 thread"},
                  {"ours_ms", times["together"]},
                  {"alone_ms", times["alone"]},
                  {"ddp_ms", times["ddp"]},
                  {"ratio_alone", share},
                  {"ratio_ddp", faster}});
}

inline void measure_two_hosts(const StepSettings& settings, nlohmann::json& rows) {
  SlowLink link;
  if (!link.ready()) {
    std::printf("overlap over a 1 Gbit/s link: not measured, network namespaces need root, `ip` and `tc`\n");
    return;
  }
  TrainingTeam ours(settings.self, "gloo", &link);
  Turns times({"alone", "together", "forward", "reduce"}, settings.rounds,
              [&](const std::string& question) { return ours.ask(question, 1); });
  const double backward = times.difference("alone", "forward"), extra = times.difference("together", "alone");
  const double hidden = 1 - extra / std::min(times["reduce"], backward);
  std::printf(
      "overlap over a 1 Gbit/s link, 2 hosts: %.1f ms a step, without communication %.1f less (backward %.1f), "
      "communication alone %.1f: %.2f hidden (goal 0.8)\n",
      times["together"], extra, backward, times["reduce"], hidden);
  rows.push_back({{"case", "overlap over a 1 Gbit/s link"},
                  {"step_ms", times["together"]},
                  {"alone_ms", times["alone"]},
                  {"extra_ms", extra},
                  {"backward_ms", backward},
                  {"reduce_ms", times["reduce"]},
                  {"hidden", hidden}});
}

inline void measure_launch(const StepSettings& settings, nlohmann::json& rows) {
  std::string launcher = std::filesystem::canonical("/proc/self/exe").replace_filename("bonfire").string();
  std::vector<double> times;
  for (int round = -1; round < settings.rounds; ++round) {  // the first one records its choices
    auto begin = Clock::now();
    FILE* pipe = popen((launcher + " launch --nproc_per_node 8 " + settings.self + " --first-step").c_str(), "r");
    char line[256];
    bool done = false;
    while (!done && pipe != nullptr && fgets(line, sizeof line, pipe) != nullptr)
      done = std::string_view(line).ends_with("done\n");
    if (round >= 0) times.push_back(seconds(Clock::now() - begin));
    if (pipe == nullptr || pclose(pipe) != 0 || !done)
      throw_error<CommError>("[bench_comm] the ranks of `bonfire launch` have failed");
  }
  std::printf("launch to first step, 8 ranks, MNIST CNN, choices remembered: %.2f s (goal 2)\n", median(times));
  rows.push_back({{"case", "launch to first step, 8 ranks"}, {"seconds", median(times)}});
}

inline void measure_training(const StepSettings& settings, nlohmann::json& rows) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  measure_one_host(settings, rows);
  measure_two_hosts(settings, rows);
  measure_launch(settings, rows);
}

}  // namespace bench
