// All-reduce between processes of this host: ours beside Gloo's ring, OpenMPI's and PyTorch's, in turn, medians; then
// what communication costs whole training steps (training_ranks.h), small messages between hosts (delayed_link.h), and
// a rank that is slow now and then (slow_rank.h).
//
//   bench_comm [--peer-python PYTHON] [--json FILE] [--rounds N] [--only all-reduce|steps|small|slow-rank]
//
// Each library has processes of its own, which sleep while another has its turn. "shm" reduces gradients that lie in
// the group's buffer, "shm copied" such as lie elsewhere; "gloo" is our ring over Gloo's connections. Values are f32.

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "bonfire/base/error.h"
#include "bonfire/comm/gloo/gloo_group.h"
#include "bonfire/comm/shm/shm_group.h"
#include "bonfire/comm/store_client.h"
#include "bonfire/comm/store_server.h"
#include "delayed_link.h"
#include "measure.h"
#include "slow_rank.h"
#include "training_ranks.h"
#ifdef BONFIRE_BENCH_GLOO
#include <gloo/allreduce.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#endif
#ifdef BONFIRE_BENCH_MPI
#include <mpi.h>
#endif

namespace {

using namespace bonfire;
using namespace std::chrono_literals;
using bench::Clock;

constexpr size_t kMostBytes = 44'700'000;  // the gradients of the small ResNet-18

struct Turn {
  int64_t bytes = 0, times = 0;  // 0 bytes: the end
};

// One of the libraries that are compared, as a rank of it sees it.
class Library {
 public:
  virtual ~Library() = default;
  virtual void share(Turn& turn) = 0;         // rank 0's is everyone's; the others sleep until it comes
  virtual void all_reduce(size_t bytes) = 0;  // sum
};

class Ours : public Library {
 public:
  Ours(std::shared_ptr<comm::Group> group, bool in_buffer)
      : group_(std::move(group)),
        values_(in_buffer ? group_->buffer(kMostBytes) : comm::GroupBuffer(new std::byte[kMostBytes])) {
    std::memset(values_.get(), 0, kMostBytes);
  }
  void share(Turn& turn) override { group_->broadcast({&turn, 2, DType::i64}, 0); }
  void all_reduce(size_t bytes) override {
    group_->all_reduce({values_.get(), bytes / sizeof(float), DType::f32}, comm::Reduce::sum);
  }

 private:
  std::shared_ptr<comm::Group> group_;
  comm::GroupBuffer values_;
};

#ifdef BONFIRE_BENCH_GLOO
class GloosRing : public Library {
 public:
  GloosRing(int rank, int size, const std::string& folder) : values_(kMostBytes / sizeof(float)) {
    gloo::rendezvous::FileStore store(folder);
    gloo::transport::tcp::attr attributes;
    attributes.iface = "lo";
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    context->setTimeout(1h);
    context->connectFullMesh(store, device);
    context_ = context;
  }
  void share(Turn& turn) override {
    gloo::BroadcastOptions options(context_);
    options.setOutput(reinterpret_cast<int64_t*>(&turn), 2);
    options.setRoot(0);
    gloo::broadcast(options);
  }
  void all_reduce(size_t bytes) override {
    gloo::AllreduceOptions options(context_);
    options.setOutput(values_.data(), bytes / sizeof(float));
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setReduceFunction(
        [](void* to, const void* a, const void* b, size_t count) { gloo::sum<float>(to, a, b, count); });
    gloo::allreduce(options);
  }

 private:
  std::vector<float> values_;
  std::shared_ptr<gloo::Context> context_;
};
#endif

#ifdef BONFIRE_BENCH_MPI
class OpenMpi : public Library {
 public:
  OpenMpi() : values_(kMostBytes / sizeof(float)) { MPI_Init(nullptr, nullptr); }
  ~OpenMpi() override { MPI_Finalize(); }
  void share(Turn& turn) override {  // MPI's own wait would take a core from the others
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibcast(&turn, sizeof turn, MPI_BYTE, 0, MPI_COMM_WORLD, &request);
    for (int done = 0; done == 0; std::this_thread::sleep_for(1ms)) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
  }
  void all_reduce(size_t bytes) override {
    MPI_Allreduce(MPI_IN_PLACE, values_.data(), static_cast<int>(bytes / sizeof(float)), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  }

 private:
  std::vector<float> values_;
};
#endif

// Where a process has its place: as which rank of which library's group.
struct Place {
  std::string library;
  int rank = 0, size = 1;
  std::string meeting;  // port of the store, or Gloo's folder
};

std::unique_ptr<Library> join(const Place& place) {
#ifdef BONFIRE_BENCH_GLOO
  if (place.library == "gloos-ring") return std::make_unique<GloosRing>(place.rank, place.size, place.meeting);
#endif
#ifdef BONFIRE_BENCH_MPI
  if (place.library == "openmpi") return std::make_unique<OpenMpi>();
#endif
  auto store = comm::connect_store({.port = std::stoi(place.meeting)});
  comm::Membership membership{
      .rank = place.rank, .size = place.size, .store = store, .name = place.library, .timeout = 1h};
  if (place.library == "gloo") return std::make_unique<Ours>(comm::gloo_group(membership, {.interface = "lo"}), false);
  return std::make_unique<Ours>(comm::shm_group(membership), place.library == "shm");
}

// Microseconds of an all-reduce: the median of many.
double run_turn(Library& library, const Turn& turn) {
  std::vector<double> times;
  for (int64_t i = 0; i < turn.times; ++i) {
    auto begin = Clock::now();
    library.all_reduce(static_cast<size_t>(turn.bytes));
    times.push_back(bench::microseconds(Clock::now() - begin));
  }
  return bench::median(times);
}

// Rank 0 answers each line ("bytes times") with microseconds; the others do as it says.
int be_rank(const Place& place) {
  std::unique_ptr<Library> library = join(place);
  Turn turn;
  do {
    std::string line;
    turn = {};
    if (place.rank == 0 && std::getline(std::cin, line)) std::istringstream(line) >> turn.bytes >> turn.times;
    library->share(turn);
    double median = run_turn(*library, turn);
    if (place.rank == 0 && turn.bytes > 0) std::printf("%f\n", median);
    std::fflush(stdout);
  } while (turn.bytes > 0);
  return 0;
}

struct Case {
  const char* title;
  int ranks;
  size_t bytes;
  int times;  // in a turn
};
constexpr Case kCases[] = {{"44.7 MB, 2 ranks", 2, kMostBytes, 6},
                           {"1 MiB, 2 ranks", 2, 1 << 20, 100},
                           {"64 KiB, 2 ranks", 2, 64 << 10, 300},
                           {"64 KiB, 4 ranks", 4, 64 << 10, 100}};

struct Settings {
  std::string self, peer, json, only;
  int rounds = 5;
};

struct Folder {
  Folder() : path(std::filesystem::temp_directory_path() / ("bonfire_bench_comm_" + std::to_string(::getpid()))) {}
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::filesystem::path path;
};

// A library's processes, of which rank 0 is asked.
class Team {
 public:
  Team(const Settings& settings, const std::string& name, int size, const std::string& meeting) {
    auto command = [&](int rank) {
      return settings.self + " --rank " + name + " " + std::to_string(rank) + " " + std::to_string(size) + " " +
             meeting;
    };
    if (name == "openmpi") {
      lead_ = std::make_unique<bench::Worker>("mpirun --oversubscribe -n " + std::to_string(size) + " sh -c '" +
                                              settings.self + " --rank openmpi $OMPI_COMM_WORLD_RANK " +
                                              std::to_string(size) + " none'");
    } else if (name == "pytorch") {
      lead_ = std::make_unique<bench::Worker>(settings.peer + " " BONFIRE_SOURCE_DIR "/bench/peers/comm.py " +
                                              std::to_string(size) + " 2>/dev/null");
    } else {
      for (int rank = 1; rank < size; ++rank) followers_.push_back(std::make_unique<bench::Worker>(command(rank)));
      lead_ = std::make_unique<bench::Worker>(command(0));
    }
  }
  ~Team() { lead_.reset(); }  // whose end is told to the others

  double ask(const Case& one) { return lead_->ask(std::to_string(one.bytes) + " " + std::to_string(one.times)); }

 private:
  std::vector<std::unique_ptr<bench::Worker>> followers_;
  std::unique_ptr<bench::Worker> lead_;
};

std::vector<std::string> libraries(const Settings& settings) {
  std::vector<std::string> names = {"shm", "shm-copied"};
  if (comm::has_gloo()) names.emplace_back("gloo");
#ifdef BONFIRE_BENCH_GLOO
  names.emplace_back("gloos-ring");
#endif
#ifdef BONFIRE_BENCH_MPI
  if (std::system("command -v mpirun >/dev/null") == 0) names.emplace_back("openmpi");
#endif
  if (!settings.peer.empty()) names.emplace_back("pytorch");
  return names;
}

double over(double theirs, double ours) { return theirs > 0 && ours > 0 ? theirs / ours : 0; }

void measure(const Settings& settings, int ranks, const std::string& port, nlohmann::json& rows) {
  Folder folder;
  std::vector<std::string> names = libraries(settings);
  std::map<std::string, std::unique_ptr<Team>> teams;
  for (const std::string& name : names) {
    std::filesystem::path meeting = folder.path / name;
    std::filesystem::create_directories(meeting);
    teams[name] = std::make_unique<Team>(settings, name, ranks, name == "gloos-ring" ? meeting.string() : port);
  }
  for (const Case& one : kCases) {
    if (one.ranks != ranks) continue;
    std::map<std::string, std::vector<double>> times;
    for (int round = -1; round < settings.rounds; ++round)  // the first one warms up
      for (const std::string& name : names) {
        double median = teams[name]->ask(one);
        if (round >= 0) times[name].push_back(median);
      }
    nlohmann::json row = {{"case", one.title}, {"ranks", ranks}, {"bytes", one.bytes}};
    std::printf("%-18s", one.title);
    for (const std::string& name : names) {
      row[name + "_us"] = bench::median(times[name]);
      std::printf(" %11.1f", bench::median(times[name]));
    }
    double ours = bench::median(times["shm"]);
    row["ratio_gloo"] = over(bench::median(times["gloos-ring"]), ours);
    row["ratio_openmpi"] = over(bench::median(times["openmpi"]), ours);
    row["ratio_pytorch"] = over(bench::median(times["pytorch"]), ours);
    std::printf("   %6.1f %8.1f %8.1f\n", row["ratio_gloo"].get<double>(), row["ratio_openmpi"].get<double>(),
                row["ratio_pytorch"].get<double>());
    std::fflush(stdout);
    rows.push_back(row);
  }
}

int run_all(const Settings& settings) {
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  nlohmann::json rows = nlohmann::json::array();
  const std::set<std::string> parts{"", "all-reduce", "steps", "small", "slow-rank"};
  if (!parts.contains(settings.only))
    throw_error<ConfigError>("[bench_comm] --only is '{}', expected all-reduce, steps, small or slow-rank",
                             settings.only);
  auto asked = [&](const char* part) { return settings.only.empty() || settings.only == part; };
  if (asked("all-reduce")) {
    std::printf("%-18s", "all-reduce, us");
    for (const std::string& name : libraries(settings)) std::printf(" %11s", name.c_str());
    std::printf("   x Gloo x OpenMPI x PyTorch\n");
    for (int ranks : {2, 4}) {
      auto server = comm::serve_store({});
      measure(settings, ranks, std::to_string(server->port()), rows);
    }
  }
  if (asked("steps")) bench::measure_training({settings.self, settings.peer, settings.rounds}, rows);
  if (asked("small")) bench::measure_small_messages(settings.self, rows);
  if (asked("slow-rank")) bench::measure_slow_rank(settings.self, settings.rounds, rows);
  if (!settings.json.empty()) std::ofstream(settings.json) << rows.dump(1) << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  settings.self = std::filesystem::canonical("/proc/self/exe").string();
  std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (arguments.size() == 5 && arguments[0] == "--rank")
      return be_rank({arguments[1], std::stoi(arguments[2]), std::stoi(arguments[3]), arguments[4]});
    if (arguments.size() == 2 && arguments[0] == "--train") return bench::be_training_rank(arguments[1]);
    if (arguments.size() == 1 && arguments[0] == "--first-step") return bench::do_first_step();
    if (arguments.size() == 1 && arguments[0] == "--small") return bench::be_small_rank();
    if (arguments.size() == 2 && arguments[0] == "--slow-rank") return bench::be_slow_now_and_then(arguments[1] == "1");
    CLI::App flags("Collectives between processes, beside other libraries'", "bench_comm");
    flags.add_option("--peer-python", settings.peer, "a Python that has PyTorch");
    flags.add_option("--json", settings.json, "a file for what was measured");
    flags.add_option("--rounds", settings.rounds, "turns of each library")->check(CLI::PositiveNumber);
    flags.add_option("--only", settings.only, "measurements whose name has this in it");
    CLI11_PARSE(flags, argc, argv);
    return run_all(settings);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
