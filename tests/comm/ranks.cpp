#include "tests/comm/ranks.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/comm/gloo/gloo_group.h"
#include "bonfire/comm/local/local_group.h"
#include "bonfire/comm/mpi/mpi_group.h"
#include "bonfire/comm/shm/shm_group.h"
#include "bonfire/comm/store_client.h"
#include "tests/support/child_process.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::testing {
namespace {

using Body = std::function<void(Rank&)>;

constexpr const char* kRank = "BONFIRE_TEST_RANK";
constexpr const char* kStorePort = "BONFIRE_TEST_STORE_PORT";
constexpr const char* kMpiFolder = "BONFIRE_TEST_MPI_FOLDER";
constexpr const char* kReport = "BONFIRE_TEST_REPORT";      // descriptor of the pipe for how the rank ended
constexpr const char* kCounters = "BONFIRE_TEST_COUNTERS";  // descriptor of the memory of the counters
const std::string kEnded = "ended: ";                       // begins a rank's report

std::string ending_of(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const std::exception& error) {
    return std::string("threw: ") + error.what();
  }
}

std::vector<std::string> run_threads(bool staged, int size, const Body& body, std::chrono::milliseconds timeout) {
  Counters counters{};
  auto groups = comm::local_groups(size, {.timeout = timeout, .staged = staged});
  std::vector<std::string> endings(groups.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < groups.size(); ++rank)
    threads.emplace_back([&, rank] {
      Rank mine{std::move(groups[rank]), counters};
      endings[rank] = ending_of([&] { body(mine); });
    });
  for (std::thread& thread : threads) thread.join();
  return endings;
}

std::shared_ptr<comm::Group> make_group(Backend backend, const comm::Membership& membership) {
  if (backend == Backend::shm) return comm::shm_group(membership);
  return comm::gloo_group(membership, {.interface = "lo"});
}

int number_in(const char* variable) { return std::atoi(std::getenv(variable)); }

Counters& map_counters(int memory) {
  void* data = ::mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (data == MAP_FAILED) throw std::runtime_error("no shared memory");
  return *static_cast<Counters*>(data);  // zeros at first
}

// The life of a rank that run_processes has started: how it ended goes into the pipe.
[[noreturn]] void be_rank(Backend backend, int size, const Body& body, std::chrono::milliseconds timeout) {
  std::string ending = ending_of([&] {
    auto store = comm::connect_store({.port = number_in(kStorePort), .token = "secret", .generation = 0});
    comm::Membership membership{
        .rank = number_in(kRank), .size = size, .store = store, .name = "test", .timeout = timeout};
    Rank mine{make_group(backend, membership), map_counters(number_in(kCounters)), store};
    body(mine);
  });
  // What does not fit into the pipe at once is not worth more.
  std::string report = kEnded + ending.substr(0, 4000);
  [[maybe_unused]] ssize_t written = ::write(number_in(kReport), report.data(), report.size());
  ::_exit(ending.empty() ? 0 : 1);
}

// The same under mpirun, which closes what it does not know: endings and counters are files.
[[noreturn]] void be_mpi_rank(const std::filesystem::path& folder, const Body& body,
                              std::chrono::milliseconds timeout) {
  int memory = ::open((folder / "counters").c_str(), O_RDWR);
  Counters& counters = map_counters(memory);
  int rank = number_in("OMPI_COMM_WORLD_RANK"), size = number_in("OMPI_COMM_WORLD_SIZE");
  std::string ending = ending_of([&] {
    Rank mine{comm::mpi_group({.timeout = timeout}), counters};
    body(mine);
  });
  std::ofstream(folder / std::to_string(rank)) << ending << "\nend";
  // A rank that ends without an end of MPI makes mpirun end the others.
  ++counters.back();
  while (counters.back() < size) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::exit(0);
}

std::string current_test() {
  const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
  return std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name();
}

// Waits for mpirun, but not for long after the last rank's report: it may hang there for good (libpmix waits for
// itself in PMIx_server_finalize when ranks have left without an end of MPI).
void wait_for_mpirun(ChildProcess& job, const std::filesystem::path& folder, int size) {
  auto all_reported = [&] {
    for (int rank = 0; rank < size; ++rank) {
      std::ifstream stream(folder / std::to_string(rank));
      std::string text{std::istreambuf_iterator<char>(stream), {}};
      if (!text.ends_with("\nend")) return false;
    }
    return true;
  };
  std::atomic<bool> over = false;
  std::thread watch([&] {
    constexpr int kPatience = 100;  // looks
    for (int looks = 0; !over && looks < kPatience; std::this_thread::sleep_for(std::chrono::milliseconds(50)))
      looks += all_reported() ? 1 : 0;
    if (!over) job.signal(SIGKILL);
  });
  job.wait();
  over = true;
  watch.join();
}

std::vector<std::string> run_under_mpirun(int size) {
  ScratchFolder folder;
  folder.put("counters", std::string(sizeof(Counters), '\0'));
  ChildProcess job({"mpirun", "--oversubscribe", "-n", std::to_string(size),
                    std::filesystem::read_symlink("/proc/self/exe").string(), current_test()},
                   {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                    {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                    {"ASAN_OPTIONS", "detect_leaks=0"},  // MPI keeps what it has
                    {kMpiFolder, folder.path().string()}});
  wait_for_mpirun(job, folder.path(), size);
  std::vector<std::string> endings;
  for (int rank = 0; rank < size; ++rank) {
    std::string text = folder.get(std::to_string(rank));
    endings.push_back(text.ends_with("\nend") ? text.substr(0, text.size() - 4) : "never ended: " + job.output());
  }
  return endings;
}

// This program once more, with the test that runs now and nothing else.
pid_t start_rank(int rank, int port, int report, int counters) {
  std::string filter = current_test();
  pid_t process = ::fork();
  if (process != 0) return process;
  ::setenv(kRank, std::to_string(rank).c_str(), 1);
  ::setenv(kStorePort, std::to_string(port).c_str(), 1);
  ::setenv(kReport, std::to_string(report).c_str(), 1);
  ::setenv(kCounters, std::to_string(counters).c_str(), 1);
  for (const char* of_shards : {"GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX"}) ::unsetenv(of_shards);  // there is one test
  ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
  ::execl("/proc/self/exe", "test_comm", filter.c_str(), nullptr);
  ::_exit(127);
}

std::string ending_of(pid_t process, int report) {
  std::string text;
  char part[512];
  for (ssize_t got = 0; (got = ::read(report, part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(got));
  ::close(report);
  int status = 0;
  ::waitpid(process, &status, 0);
  if (WIFSIGNALED(status)) return "killed by signal " + std::to_string(WTERMSIG(status));
  if (!text.starts_with(kEnded)) return "its test never ended; exit status " + std::to_string(WEXITSTATUS(status));
  return text.substr(kEnded.size());
}

std::vector<std::string> run_processes(int size) {
  ChildProcess store({program_beside("store_server_program")});
  int port = std::stoi(store.read_line());
  int counters = ::memfd_create("counters", 0);
  if (::ftruncate(counters, sizeof(Counters)) != 0) throw std::runtime_error("no shared memory");
  std::vector<std::pair<pid_t, int>> processes;
  for (int rank = 0; rank < size; ++rank) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    int report = ::dup(ends[1]);  // the one end that the rank keeps
    ::close(ends[1]);
    processes.emplace_back(start_rank(rank, port, report, counters), ends[0]);
    ::close(report);
  }
  ::close(counters);
  std::vector<std::string> endings;
  for (auto [process, report] : processes) endings.push_back(ending_of(process, report));
  return endings;
}

}  // namespace

std::string name_of(Backend backend) {
  constexpr const char* kNames[] = {"local", "staged", "shm", "gloo", "mpi"};
  return kNames[static_cast<size_t>(backend)];
}

bool are_threads(Backend backend) { return backend == Backend::local || backend == Backend::staged; }

bool is_here(Backend backend) {
  if (backend == Backend::gloo) return comm::has_gloo();
  if (backend == Backend::mpi) return comm::has_mpi() && std::system("command -v mpirun >/dev/null") == 0;
  return true;
}

std::vector<std::string> run_ranks(Backend backend, int size, const Body& body, std::chrono::milliseconds timeout) {
  if (are_threads(backend)) return run_threads(backend == Backend::staged, size, body, timeout);
  if (backend == Backend::mpi) {
    if (const char* folder = std::getenv(kMpiFolder)) be_mpi_rank(folder, body, timeout);
    return run_under_mpirun(size);
  }
  if (std::getenv(kRank) != nullptr) be_rank(backend, size, body, timeout);
  return run_processes(size);
}

void Rank::wait_for(size_t counter, int value) const {
  while (counters[counter] < value) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

void expect_all_fine(const std::vector<std::string>& endings) {
  for (size_t rank = 0; rank < endings.size(); ++rank) EXPECT_EQ(endings[rank], "") << "rank " << rank;
}

}  // namespace bonfire::testing
