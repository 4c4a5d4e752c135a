#include "tests/comm/ranks.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>
#include <thread>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/comm/gloo/gloo_group.h"
#include "bonfire/comm/local/local_group.h"
#include "bonfire/comm/shm/shm_group.h"
#include "tests/comm/file_store.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::testing {
namespace {

using Body = std::function<void(Rank&)>;

std::string ending_of(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const std::exception& error) {
    return std::string("threw: ") + error.what();
  }
}

std::vector<std::string> run_threads(int size, const Body& body, std::chrono::milliseconds timeout) {
  ScratchFolder folder;
  auto groups = comm::local_groups(size, {.timeout = timeout});
  std::vector<std::string> endings(groups.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < groups.size(); ++rank)
    threads.emplace_back([&, rank] {
      Rank mine{std::move(groups[rank]), std::make_shared<FileStore>(folder.path())};
      endings[rank] = ending_of([&] { body(mine); });
    });
  for (std::thread& thread : threads) thread.join();
  return endings;
}

std::shared_ptr<comm::Group> make_group(Backend backend, const comm::Membership& membership) {
  if (backend == Backend::shm) return comm::shm_group(membership);
  return comm::gloo_group(membership, {.interface = "lo"});
}

[[noreturn]] void be_rank(Backend backend, const comm::Membership& membership, const Body& body, int report) {
  std::string ending = ending_of([&] {
    Rank mine{make_group(backend, membership), membership.store};
    body(mine);
  });
  // What does not fit into the pipe at once is not worth more.
  [[maybe_unused]] ssize_t written = ::write(report, ending.data(), std::min<size_t>(ending.size(), 4000));
  ::_exit(ending.empty() ? 0 : 1);
}

std::string ending_of(pid_t process, int report) {
  std::string text;
  char part[512];
  for (ssize_t got = 0; (got = ::read(report, part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(got));
  ::close(report);
  int status = 0;
  ::waitpid(process, &status, 0);
  if (WIFSIGNALED(status)) return "killed by signal " + std::to_string(WTERMSIG(status));
  return text.empty() && WEXITSTATUS(status) != 0 ? "exit status " + std::to_string(WEXITSTATUS(status)) : text;
}

std::vector<std::string> run_processes(Backend backend, int size, const Body& body, std::chrono::milliseconds timeout) {
  ScratchFolder folder;
  auto store = std::make_shared<FileStore>(folder.path());
  std::vector<std::pair<pid_t, int>> processes;
  for (int rank = 0; rank < size; ++rank) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
    pid_t process = ::fork();
    if (process == 0) {
      ::close(ends[0]);
      be_rank(backend, {.rank = rank, .size = size, .store = store, .name = "test", .timeout = timeout}, body, ends[1]);
    }
    ::close(ends[1]);
    processes.emplace_back(process, ends[0]);
  }
  std::vector<std::string> endings;
  for (auto [process, report] : processes) endings.push_back(ending_of(process, report));
  return endings;
}

}  // namespace

std::string name_of(Backend backend) {
  return backend == Backend::local ? "local" : backend == Backend::shm ? "shm" : "gloo";
}

std::vector<std::string> run_ranks(Backend backend, int size, const Body& body, std::chrono::milliseconds timeout) {
  if (backend == Backend::local) return run_threads(size, body, timeout);
  return run_processes(backend, size, body, timeout);
}

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

void expect_all_fine(const std::vector<std::string>& endings) {
  for (size_t rank = 0; rank < endings.size(); ++rank) EXPECT_EQ(endings[rank], "") << "rank " << rank;
}

}  // namespace bonfire::testing
