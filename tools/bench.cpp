#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "bonfire/base/error.h"
#include "bonfire/base/nearest.h"
#include "bonfire/launch/launcher.h"
#include "tools/command.h"

namespace bonfire::tools {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "bench_";

struct BenchWanted {
  std::string name;
  std::vector<std::string> rest;
};

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (std::string name = entry.path().filename(); name.starts_with(kPrefix))
      names.push_back(name.substr(kPrefix.size()));
  std::sort(names.begin(), names.end());
  return names;
}

int run_bench(const BenchWanted& wanted) {
  fs::path folder = launch::own_program().parent_path();  // bench/NAME.cpp is bench_NAME there
  std::vector<std::string> names = names_in(folder);
  if (wanted.name.empty()) {
    if (names.empty()) std::printf("no benchmark is built in %s: `./bonfire bench NAME` builds one\n", folder.c_str());
    for (const std::string& name : names) std::printf("%s\n", name.c_str());
    return 0;
  }
  fs::path program = folder / (std::string(kPrefix) + wanted.name);
  if (!fs::exists(program)) {
    std::string nearest = base::nearest(wanted.name, names);
    throw_error<ConfigError>(
        "[bench] there is no {}{}; `./bonfire bench NAME` builds what bench/NAME.cpp says (it needs libbenchmark-dev)",
        program.string(), nearest.empty() ? "" : "; the nearest is '" + nearest + "'");
  }
  std::vector<std::string> words = wanted.rest;
  words.insert(words.begin(), program.string());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv(program.c_str(), arguments.data());
  throw_error<DataError>("[bench] cannot start {}: {}", program.string(), std::strerror(errno));
}

}  // namespace

void add_bench(Command program) {
  Command command = program.add(
      "bench", "Runs a benchmark of bench/",
      "bonfire bench                                       the benchmarks there are\n"
      "bonfire bench cpu --peer-python python3             beside PyTorch, where it has it\n"
      "bonfire bench spine --json spine.json               what it measured, for scripts\n"
      "bonfire bench parallel --peer-python python3        stages, shared layers, placed branches on two cores\n"
      "bonfire bench strategy configs/mnist.yaml --nproc 2 what each option of a strategy gains");
  auto wanted = std::make_shared<BenchWanted>();
  command.optional_argument("name", wanted->name, "spine, cpu, gemm, ...: bench/NAME.cpp; none: lists them");
  command.takes_the_rest(wanted->rest);
  command.runs([wanted] { return run_bench(*wanted); });
}

}  // namespace bonfire::tools
