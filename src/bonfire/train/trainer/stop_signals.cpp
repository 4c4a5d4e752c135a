#include "bonfire/train/trainer/stop_signals.h"

#include <fmt/format.h>
#include <semaphore.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <mutex>
#include <string_view>
#include <thread>

#include "bonfire/base/error.h"
#include "bonfire/base/program_name.h"
#include "bonfire/train/checkpoint/checkpoint_writer.h"
#include "bonfire/train/trainer.h"

namespace bonfire::train {

namespace {

constexpr int kStops[] = {SIGINT, SIGTERM, SIGHUP};
constexpr int64_t kOneRequest = 300;  // milliseconds
constexpr std::string_view kSaid =
    "stopping: the step at hand is finished and saved; once more ends it at once, with the last checkpoint kept\n";

// What the handler may touch.
std::atomic<int64_t> stopped_at{0};  // milliseconds; 0: not asked
std::atomic<int> second{0};          // the signal that asked again
std::atomic<bool> handler_speaks{false}, in_terminal{false};
sem_t asked_again;

int64_t milliseconds_now() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);  // may be called in a handler
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000 + 1;
}

void handle(int number) {
  const int error = errno;
  const int64_t now = milliseconds_now();
  if (int64_t never = 0; stopped_at.compare_exchange_strong(never, now)) {
    Trainer::request_stop();
    ::signal(SIGPIPE, SIG_IGN);  // who reads the output may get the same signal, and end first
    if (handler_speaks) {
      // In a terminal ^C stands in the line that is drawn.
      [[maybe_unused]] ssize_t count = in_terminal ? ::write(STDERR_FILENO, "\n", 1) : 0;
      count = ::write(STDERR_FILENO, kSaid.data(), kSaid.size());
    }
  } else if (number != SIGHUP && now - stopped_at >= kOneRequest) {
    ::signal(number, SIG_DFL);
    second = number;
    ::sem_post(&asked_again);
  }
  errno = error;
}

// A run that was asked to stop is over, and the process about to end: a signal that still belongs to that request must
// not end it otherwise.
void handle_after_run(int number) {
  if (number == SIGHUP || milliseconds_now() - stopped_at < kOneRequest) return;
  ::signal(number, SIG_DFL);
  ::raise(number);
}

class StopSignals final : public Reporter {
 public:
  explicit StopSignals(bool speaks) : speaks_(speaks) {
    stopped_at = second = 0;
    handler_speaks = speaks;
    in_terminal = ::isatty(STDERR_FILENO) == 1;
    BONFIRE_CHECK(::sem_init(&asked_again, 0, 0) == 0);
    waiting_ = std::thread([this] { wait_for_second(); });
    struct sigaction action {};
    action.sa_handler = handle;
    action.sa_flags = SA_RESTART;
    for (int number : kStops) {
      struct sigaction before {};
      ::sigaction(number, nullptr, &before);
      if (number == SIGHUP && before.sa_handler == SIG_IGN) continue;
      before_.emplace_back(number, before);
      ::sigaction(number, &action, nullptr);
    }
  }
  ~StopSignals() override {
    for (auto& [number, before] : before_) {
      if (stopped_at != 0 && before.sa_handler == SIG_DFL) before.sa_handler = handle_after_run;
      ::sigaction(number, &before, nullptr);
    }
    over_ = true;
    ::sem_post(&asked_again);
    waiting_.join();
    ::sem_destroy(&asked_again);
  }

  void begin(const RunBegins& run) override {
    std::lock_guard lock(mutex_);
    folder_ = run.folder;
  }
  void step(const StepReport&) override {}
  void evaluated(const EvaluationReport&) override {}
  void note(const std::string&) override {}
  void end(const RunEnds&) override {}

 private:
  void wait_for_second() {
    while (::sem_wait(&asked_again) != 0 && errno == EINTR) {
    }
    if (over_) return;
    CheckpointWriter::wait_until_written();
    if (speaks_) std::fputs(farewell().c_str(), stderr);
    ::kill(::getpid(), second);
  }

  std::string farewell() {
    std::lock_guard lock(mutex_);
    std::optional<std::filesystem::path> newest;
    try {
      if (!folder_.empty()) newest = newest_checkpoint(folder_ / "checkpoints");
    } catch (const Error& error) {
      return fmt::format("ended at once; {}\n", error.what());
    }
    if (!newest) return "ended at once; there is no checkpoint yet\n";
    return fmt::format("ended at once; the last checkpoint is {}. To go on: {} train {}/config.yaml resume={}\n",
                       newest->string(), base::program_name(), folder_.string(), folder_.string());
  }

  bool speaks_;
  std::vector<std::pair<int, struct sigaction>> before_;
  std::mutex mutex_;  // of folder_
  std::filesystem::path folder_;
  std::atomic<bool> over_{false};
  std::thread waiting_;
};

}  // namespace

std::unique_ptr<Reporter> stop_signals(bool speaks) { return std::make_unique<StopSignals>(speaks); }

}  // namespace bonfire::train
