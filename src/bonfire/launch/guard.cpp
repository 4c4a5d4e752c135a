#include "bonfire/launch/guard.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/base/interrupted.h"
#include "bonfire/base/log.h"

namespace bonfire::launch {

namespace {

using Clock = std::chrono::steady_clock;

// timeout(1) and others signal a process and then its group: what comes so soon is not a second request.
constexpr std::chrono::milliseconds kOneRequest{300};

constexpr std::chrono::milliseconds kBetweenSigns{500}, kLateGuard{2'000};
constexpr std::chrono::milliseconds kLeastSilence{5'000};  // in which a busy host lets a process speak
constexpr int kSign = -1;                                  // of life, where exit codes come too

// What a user ends a program by.
constexpr int kRequests[] = {SIGINT, SIGTERM, SIGHUP};

struct GuardPipe {
  GuardPipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw_error<CommError>("[launch] no pipe: {}", std::strerror(errno));
    read = ends[0];
    write = ends[1];
  }
  int read = -1, write = -1;
};

sigset_t set_of(std::span<const int> numbers) {
  sigset_t set;
  sigemptyset(&set);
  for (int number : numbers) sigaddset(&set, number);
  return set;
}

// While it lives, requests to the program can be read, one byte each, whichever of its threads they come to: a library
// may have started some.
class Requests {
 public:
  Requests() {
    ::fcntl(pipe_.write, F_SETFL, O_NONBLOCK);
    target = pipe_.write;
    struct sigaction action {};
    action.sa_handler = [](int number) {
      const int error = errno;
      const auto byte = static_cast<unsigned char>(number);
      [[maybe_unused]] ssize_t count = ::write(target, &byte, 1);
      errno = error;
    };
    action.sa_flags = SA_RESTART;
    for (int number : kRequests) {
      struct sigaction before {};
      ::sigaction(number, nullptr, &before);
      if (number == SIGHUP && before.sa_handler == SIG_IGN) continue;  // nohup
      before_.emplace_back(number, before);
      ::sigaction(number, &action, nullptr);
    }
  }
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;
  ~Requests() {
    restore();
    for (int end : {pipe_.read, pipe_.write}) ::close(end);
  }

  // A child of the process, which then does with requests what the program did before.
  int fork() const {
    const sigset_t set = set_of(kRequests);
    sigset_t mask;
    ::pthread_sigmask(SIG_BLOCK, &set, &mask);  // stays so in the child, which reads them
    const int child = ::fork();
    if (child == 0)
      restore();
    else
      ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
    return child;
  }
  int descriptor() const { return pipe_.read; }
  int next() const {
    unsigned char byte = 0;
    return base::uninterrupted([&] { return ::read(pipe_.read, &byte, 1); }) == 1 ? byte : 0;
  }

 private:
  void restore() const {
    for (const auto& [number, before] : before_) ::sigaction(number, &before, nullptr);
  }

  static inline volatile int target = -1;  // where the handler writes to
  const GuardPipe pipe_ = {};
  std::vector<std::pair<int, struct sigaction>> before_;  // what the program does with them itself
};

// Blocks signals, which can then be read.
int signals_from(std::span<const int> numbers) {
  sigset_t set = set_of(numbers);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  int descriptor = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (descriptor < 0) throw_error<CommError>("[launch] no descriptor for signals: {}", std::strerror(errno));
  return descriptor;
}

// The next signal; 0: none is there.
int next_signal(int signals) {
  signalfd_siginfo info{};
  bool there = ::read(signals, &info, sizeof info) == sizeof info;
  return there ? static_cast<int>(info.ssi_signo) : 0;
}

// The parent of a process as /proc says, 0 when it is gone. Its name, in parentheses, may contain anything.
int parent_of(int process) {
  std::ifstream stream("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(stream, text, '\0');
  size_t end = text.rfind(')');
  if (end == std::string::npos || end + 4 >= text.size()) return 0;
  int parent = 0;
  std::from_chars(text.data() + end + 4, text.data() + text.size(), parent);  // after ") S "
  return parent;
}

std::vector<int> descendants_of(int ancestor) {
  std::map<int, int> parents;
  DIR* folder = ::opendir("/proc");
  if (folder == nullptr) return {};
  while (const dirent* entry = ::readdir(folder)) {
    int process = 0;
    const char* end = entry->d_name + std::strlen(entry->d_name);
    if (std::from_chars(entry->d_name, end, process).ptr == end) parents[process] = parent_of(process);
  }
  ::closedir(folder);
  std::vector<int> below;
  for (const auto& [process, parent] : parents) {
    int above = parent;
    while (above > 1 && above != ancestor) above = parents.contains(above) ? parents[above] : 0;
    if (above == ancestor) below.push_back(process);
  }
  return below;
}

int exit_code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

// Which of them can be read, in their order; none when it is time for a sign of life.
std::vector<bool> readable(std::initializer_list<int> descriptors) {
  std::vector<pollfd> sources;
  for (int descriptor : descriptors) sources.push_back({descriptor, POLLIN, 0});
  base::poll_until(sources, Clock::now() + kBetweenSigns);
  std::vector<bool> can;
  for (const pollfd& source : sources) can.push_back(source.revents != 0);
  return can;
}

// Signs of life go into a pipe that nobody may be reading for a while.
void give_sign(int pipe) {
  ::fcntl(pipe, F_SETFL, O_NONBLOCK);
  [[maybe_unused]] ssize_t count = ::write(pipe, &kSign, sizeof kSign);
}

// How long a process below has given no sign of life.
class Silence {
 public:
  explicit Silence(std::chrono::milliseconds longest) : longest_(std::max(longest, kLeastSilence)) {}

  void heard() { heard_ = Clock::now(); }
  // To be called every kBetweenSigns.
  bool is_too_long() {
    const Clock::time_point now = Clock::now();
    if (now - looked_ > kLateGuard) heard_ = now;
    looked_ = now;
    return now - heard_ >= longest_;
  }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - heard_).count(); }

 private:
  std::chrono::milliseconds longest_;
  Clock::time_point heard_ = Clock::now(), looked_ = heard_;
};

// What the guard listens to, and where it answers.
struct Watched {
  int inner;  // process
  int alive;  // can be read when the program has ended
  int signals;
  int signs;  // of life, from the inner process
  int answer;
};

// The guard's part: hands requests on until the inner process or the program has ended, or the former is stopped for
// good. The exit code.
int watch(const Watched& watched, Silence silence) {
  const auto& [inner, alive, signals, signs, answer] = watched;
  std::optional<Clock::time_point> asked_to_stop;
  for (;;) {
    give_sign(answer);
    const std::vector<bool> can = readable({alive, signals, signs});
    if (can[0]) return 128 + SIGKILL;
    if (int sign[64]; can[2] && base::uninterrupted([&] { return ::read(watched.signs, sign, sizeof sign); }) > 0)
      silence.heard();
    if (silence.is_too_long()) {
      base::log_error(
          "bonfire launch: the launcher (process {}) is stopped: it has given no sign of life for {:.1f} s; it and its "
          "ranks are ended",
          inner, silence.seconds());
      return 128 + SIGKILL;
    }
    while (int number = next_signal(signals)) {
      if (number == SIGCHLD) {
        int status = 0;
        for (int process = 1; (process = ::waitpid(-1, &status, WNOHANG)) > 0;) {
          if (process != inner) continue;
          if (WIFSIGNALED(status))
            base::log_error("bonfire launch: the launcher was killed by signal {}; its ranks are ended",
                            WTERMSIG(status));
          return exit_code_of(status);
        }
      } else if (!asked_to_stop) {
        asked_to_stop = Clock::now();
        ::kill(inner, number);
      } else if (number != SIGHUP && Clock::now() - *asked_to_stop >= kOneRequest) {  // shells send that one again
        return 128 + number;
      }
    }
  }
}

[[noreturn]] void be_inner(const std::function<int(int pipe)>& body, int pipe, int signs) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::signal(SIGPIPE, SIG_IGN);  // the guard may be dead
  std::thread([signs] {
    for (;; std::this_thread::sleep_for(kBetweenSigns)) give_sign(signs);
  }).detach();
  int code = 1;
  try {
    code = body(pipe);
  } catch (const std::exception& error) {
    base::print_failure(fmt::format("bonfire: {}", error.what()));
  }
  end_descendants();  // the body may have thrown
  std::fflush(nullptr);
  ::_exit(code);  // threads that wait for other hosts are left to it
}

// All that is below the guard is the launcher's. It answers with the exit code when nothing of it is left.
[[noreturn]] void be_guard(const std::function<int(int pipe)>& body, const GuardPipe& alive, const GuardPipe& answer,
                           std::chrono::milliseconds silence) try {
  ::close(alive.write);
  ::close(answer.read);
  ::setpgid(0, 0);             // a terminal's Ctrl-C is for the program, which hands it on
  ::signal(SIGTTOU, SIG_IGN);  // so this is not the terminal's foreground group
  ::signal(SIGCHLD, SIG_DFL);  // the program may ignore it: then nobody would learn how a process has ended
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  constexpr int kWatched[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD};
  const int signals = signals_from(kWatched);
  const GuardPipe guard, signs;
  ::signal(SIGPIPE, SIG_IGN);  // the program may be dead
  const int inner = ::fork();
  if (inner < 0) throw_error<CommError>("[launch] cannot start a process: {}", std::strerror(errno));
  if (inner == 0) {
    ::close(guard.write);
    ::close(signs.read);
    be_inner(body, guard.read, signs.write);  // holds the answer open: its end is that of both
  }
  ::close(signs.write);
  const int code = watch({inner, alive.read, signals, signs.read, answer.write}, Silence(silence));
  end_descendants();
  ::fcntl(answer.write, F_SETFL, 0);  // this one is waited for
  [[maybe_unused]] ssize_t count = ::write(answer.write, &code, sizeof code);
  ::_exit(0);
} catch (const std::exception& error) {
  base::print_failure(fmt::format("bonfire: {}", error.what()));
  ::_exit(1);
}

// A guard that is stopped cannot end what is below it.
void end_stopped_guard(int guard, const Silence& silence) {
  base::log_error(
      "bonfire launch: the launcher's guard (process {}) is stopped: it has given no sign of life for {:.1f} s; it and "
      "the ranks are ended",
      guard, silence.seconds());
  for (int process : descendants_of(guard)) ::kill(process, SIGKILL);
  ::kill(guard, SIGKILL);
}

// The program's part: hands requests on to the guard until that and the inner process are gone; the exit code.
int await(int guard, int answer, const Requests& requests, Silence silence) {
  std::optional<int> code;
  bool stopped = false;
  for (;;) {
    const std::vector<bool> can = readable({answer, requests.descriptor()});
    if (can[0]) {
      int number = 0;
      if (base::uninterrupted([&] { return ::read(answer, &number, sizeof number); }) != sizeof number) break;
      silence.heard();
      if (number != kSign) code = number;
    } else if (int number = can[1] ? requests.next() : 0; number > 0 && !code) {
      ::kill(guard, number);
    }
    if (!stopped && !code && silence.is_too_long()) {
      end_stopped_guard(guard, silence);
      stopped = true;
    }
  }
  if (!code && !stopped) base::log_error("bonfire launch: the launcher's guard was killed; the ranks are ended");
  return code.value_or(128 + SIGKILL);
}

}  // namespace

void end_descendants() {
  constexpr int kMostRounds = 200;
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  const timespec moment{0, 20'000'000};
  for (int round = 0; round < kMostRounds; ++round) {  // one that is in the kernel for good cannot be waited for
    for (int process : descendants_of(::getpid())) ::kill(process, SIGKILL);
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD) return;
    ::sigtimedwait(&child, nullptr, &moment);
  }
}

int run_guarded(const std::function<int(int pipe)>& body, std::chrono::milliseconds silence) {
  Requests requests;
  const GuardPipe alive, answer;
  std::fflush(nullptr);
  const int guard = requests.fork();
  if (guard < 0) throw_error<CommError>("[launch] cannot start a process: {}", std::strerror(errno));
  if (guard == 0) be_guard(body, alive, answer, silence);
  ::close(alive.read);
  ::close(answer.write);
  const int code = await(guard, answer.read, requests, Silence(silence));
  // The one child that this call has made. A program that asks after its children itself may have done so already.
  base::uninterrupted([&] { return ::waitpid(guard, nullptr, 0); });
  for (int descriptor : {alive.write, answer.read}) ::close(descriptor);
  return code;
}

}  // namespace bonfire::launch
