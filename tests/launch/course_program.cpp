// A rank of a training that can be broken off anywhere:
//   course_program BACKEND FILE STEPS [RANK SIGNAL STEP MICROSECONDS]
// Every fifth step is kept in FILE, from which a restart goes on. Where the last four are given, that rank sends itself
// the signal so many microseconds after it has begun that step, unless this is a restart. The first rank prints
// "training" when some steps are done, and "weights MD5" at the end.

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "bonfire/base/md5.h"
#include "bonfire/bonfire.h"
#include "bonfire/launch/launcher.h"

namespace {

using namespace bonfire;

constexpr int64_t kBetweenCheckpoints = 5;

struct Fault {
  int rank = -1, signal = 0;
  int64_t step = 0, microseconds = 0;
};

// A number and bytes: how many steps are done, then the weights.
struct Checkpoint {
  int64_t step = 0;
  std::vector<std::byte> weights;  // of the layer's weight
};

void write(const std::string& file, const Checkpoint& checkpoint) {
  {
    std::ofstream stream(file + ".new", std::ios::binary);
    stream.write(reinterpret_cast<const char*>(&checkpoint.step), sizeof checkpoint.step);
    stream.write(reinterpret_cast<const char*>(checkpoint.weights.data()),
                 static_cast<std::streamsize>(checkpoint.weights.size()));
    stream.close();
    if (!stream) throw_error<DataError>("[course] cannot write '{}': {}", file, std::strerror(errno));
  }
  std::filesystem::rename(file + ".new", file);
}

bool read(const std::string& file, Checkpoint& checkpoint) {
  std::ifstream stream(file, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (text.size() < sizeof checkpoint.step) return false;
  std::memcpy(&checkpoint.step, text.data(), sizeof checkpoint.step);
  checkpoint.weights.resize(text.size() - sizeof checkpoint.step);
  std::memcpy(checkpoint.weights.data(), text.data() + sizeof checkpoint.step, checkpoint.weights.size());
  return true;
}

void begin(const Fault& fault, int64_t step) {
  const char* generation = std::getenv("BONFIRE_GENERATION");
  if (fault.rank != fleet::rank() || fault.step != step || (generation != nullptr && *generation != '0')) return;
  std::thread([fault] {
    std::this_thread::sleep_for(std::chrono::microseconds(fault.microseconds));
    ::kill(::getpid(), fault.signal);
  }).detach();
}

struct Course {
  std::string backend, file;
  int64_t steps = 0;
};

void train(const Course& course, const Fault& fault) {
  fleet::init({.backend = course.backend});
  manual_seed(1);
  nn::Linear plain({.in = 512, .out = 256, .bias = false});
  Checkpoint checkpoint;
  if (fleet::rank() == 0 && read(course.file, checkpoint)) plain.parameters()[0].load(checkpoint.weights);
  nn::Linear model = fleet::distributed_model(plain);
  auto optimizer = fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = 0.5}));
  fleet::group().broadcast({&checkpoint.step, 1, DType::i64}, 0);
  for (int64_t step = checkpoint.step; step < course.steps; ++step) {
    if (step % kBetweenCheckpoints == 0 && fleet::rank() == 0) write(course.file, {step, model.parameters()[0].save()});
    if (step == checkpoint.step + 4 && fleet::rank() == 0) std::puts("training");
    begin(fault, step);
    double value = 0.01 * static_cast<double>((step % 40 + 1) * (fleet::rank() + 1));
    Tensor loss = mean(tanh(model(full({4, 512}, value, DType::f32))));
    loss.backward();
    optimizer.step();
    optimizer.clear_grad();
    loss.item();
  }
  if (fleet::rank() == 0) std::printf("weights %s\n", base::md5(model.parameters()[0].save()).c_str());
  fleet::leave();
}

}  // namespace

int main(int, char** argv) try {
  Fault fault;
  if (argv[4] != nullptr) fault = {std::atoi(argv[4]), std::atoi(argv[5]), std::atoi(argv[6]), std::atoi(argv[7])};
  train({argv[1], argv[2], std::atoi(argv[3])}, fault);
  return 0;
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  std::_Exit(launch::exit_status_of(error));
}
