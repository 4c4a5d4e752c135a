#include "bonfire/launch/spawn.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/base/log.h"
#include "bonfire/base/machine.h"
#include "bonfire/comm/environment.h"
#include "bonfire/launch/launcher.h"

namespace bonfire::fleet {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVariable = "BONFIRE_SPAWN";  // which call of spawn() a rank was started by, counted from 1

// 0 for a process that no spawn() has started. The variable is not for processes that a rank starts.
int started_by() {
  static const int call = [] {
    const char* text = std::getenv(kVariable);
    int number = text == nullptr ? 0 : std::atoi(text);
    ::unsetenv(kVariable);
    return number;
  }();
  return call;
}

std::vector<std::string> own_arguments() {
  std::ifstream stream("/proc/self/cmdline", std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(stream), {}};
  std::vector<std::string> words;
  for (size_t begin = 0, end; (end = text.find('\0', begin)) != std::string::npos; begin = end + 1)
    words.push_back(text.substr(begin, end - begin));
  if (!words.empty()) words.erase(words.begin());
  return words;
}

void run_alone(const std::function<void()>& body, const Options& options) {
  init(options);
  body();
  leave();
}

[[noreturn]] void run_as_rank(const std::function<void()>& body, const Options& options) {
  try {
    run_alone(body, options);
  } catch (const std::exception& error) {
    base::print_failure(error.what());
    std::exit(launch::exit_status_of(error));
  }
  std::exit(0);
}

int launch_ranks(int call, int ranks) {
  struct Variable {  // for the ranks alone
    explicit Variable(int call) { ::setenv(kVariable, std::to_string(call).c_str(), 1); }
    ~Variable() { ::unsetenv(kVariable); }
  } const variable(call);
  return launch::launch({.program = launch::own_program(), .arguments = own_arguments(), .ranks = ranks});
}

void require_fresh() {
  const comm::Environment self = comm::read_environment();
  if (self.starter != comm::Starter::nobody)
    throw_error<ConfigError>(
        "[fleet] spawn() in a process that is rank {} of {} already; start the program plainly, or call fleet::init() "
        "instead",
        self.rank, self.world);
  auto threads = std::distance(fs::directory_iterator("/proc/self/task"), fs::directory_iterator());
  if (threads > 1)
    throw_error<ConfigError>(
        "[fleet] spawn() comes before anything is computed: this process has {} threads already, which its ranks would "
        "not have",
        threads);
}

}  // namespace

void spawn(const std::function<void()>& body, int ranks, const Options& options) {
  static int calls = 0;
  ++calls;
  if (started_by() == calls) run_as_rank(body, options);
  if (started_by() > calls) return;  // for other ranks
  if (ranks < 1) throw_error<ConfigError>("[fleet] spawn() of {} ranks, expected at least 1", ranks);
  if (ranks > base::most_tasks())
    throw_error<ConfigError>("[fleet] spawn() of {} ranks, expected at most {} on this machine", ranks,
                             base::most_tasks());
  launch::own_program();  // without /proc nothing below could be told
  require_fresh();
  if (ranks == 1) return run_alone(body, options);
  const int code = launch_ranks(calls, ranks);
  if (code > 128) throw_error<CommError>("[fleet] the ranks were ended by signal {}", code - 128);
  if (code != 0) throw_error<CommError>("[fleet] a rank failed with exit status {}; see above which, and why", code);
}

}  // namespace bonfire::fleet
