#include "bonfire/launch/guard.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bonfire/base/error.h"

namespace bonfire::launch {

namespace {

using Clock = std::chrono::steady_clock;

// timeout(1) and others signal a process and then its group: what comes so soon is not a second request.
constexpr std::chrono::milliseconds kOneRequest{300};

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set, number);
  return set;
}

// The parent of a process as /proc says, 0 when it is gone. Its name, in parentheses, may contain anything.
int parent_of(int process) {
  std::ifstream stream("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(stream, text, '\0');
  size_t end = text.rfind(')');
  if (end == std::string::npos || end + 4 >= text.size()) return 0;
  int parent = 0;
  std::from_chars(text.data() + end + 4, text.data() + text.size(), parent);  // behind ") S "
  return parent;
}

std::vector<int> descendants() {
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
    while (above > 1 && above != ::getpid()) above = parents.contains(above) ? parents[above] : 0;
    if (above == ::getpid()) below.push_back(process);
  }
  return below;
}

bool is_ignored(int number) {  // nohup does that to SIGHUP
  struct sigaction action {};
  return ::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

int exit_code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

// Hands signals on until `inner` has ended; its exit code.
int watch(int inner) {
  sigset_t watched = watched_signals();
  std::optional<Clock::time_point> asked_to_stop;
  for (;;) {
    siginfo_t info{};
    int number = ::sigwaitinfo(&watched, &info);
    if (number == SIGCHLD) {
      int status = 0;
      for (int process = 1; (process = ::waitpid(-1, &status, WNOHANG)) > 0;) {
        if (process != inner) continue;
        if (WIFSIGNALED(status))
          std::fprintf(stderr, "bonfire launch: the launcher was killed by signal %d; its ranks are ended\n",
                       WTERMSIG(status));
        return exit_code_of(status);
      }
    } else if (number == SIGHUP && is_ignored(SIGHUP)) {
      continue;
    } else if (number > 0 && asked_to_stop) {
      if (Clock::now() - *asked_to_stop < kOneRequest) continue;
      ::kill(inner, SIGKILL);
      ::waitpid(inner, nullptr, 0);
      return 128 + number;
    } else if (number > 0) {
      asked_to_stop = Clock::now();
      ::kill(inner, number);
    }
  }
}

}  // namespace

void end_descendants() {
  constexpr int kMostRounds = 200;
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  const timespec moment{0, 20'000'000};
  for (int round = 0; round < kMostRounds; ++round) {  // one that is in the kernel for good cannot be waited for
    for (int process : descendants()) ::kill(process, SIGKILL);
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD) return;
    ::sigtimedwait(&child, nullptr, &moment);
  }
}

int run_guarded(const std::function<int(int pipe)>& body) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_error<CommError>("[launch] no pipe: {}", std::strerror(errno));
  sigset_t watched = watched_signals(), before;
  ::sigprocmask(SIG_BLOCK, &watched, &before);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::fflush(nullptr);
  int inner = ::fork();
  if (inner < 0) throw_error<CommError>("[launch] cannot start a process: {}", std::strerror(errno));
  if (inner == 0) {
    ::close(ends[1]);
    ::setpgid(0, 0);  // a terminal's Ctrl-C is for the outer process, which hands it on
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    int code = 1;
    try {
      code = body(ends[0]);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "bonfire: %s\n", error.what());
    }
    end_descendants();  // the body may have thrown
    std::fflush(nullptr);
    ::_exit(code);  // threads that wait for other hosts are left to it
  }
  ::close(ends[0]);
  int code = watch(inner);
  end_descendants();
  ::close(ends[1]);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  return code;
}

}  // namespace bonfire::launch
