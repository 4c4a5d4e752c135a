#include "bonfire/launch/launcher.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/base/log.h"
#include "bonfire/base/machine.h"
#include "bonfire/base/thread_pool.h"
#include "bonfire/comm/environment.h"
#include "bonfire/comm/lost_peer.h"
#include "bonfire/comm/secret.h"
#include "bonfire/launch/guard.h"
#include "bonfire/launch/nodes.h"
#include "bonfire/launch/rank_process.h"

namespace bonfire::launch {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kDefaultPort = 29500;
constexpr int kAbort = SIGUSR1;  // ends a program that does not know it; SIGTERM and SIGINT ask to save first
constexpr std::chrono::milliseconds kWordsDelay{2000};  // in which ranks learn whom they have lost, and say so
constexpr std::chrono::milliseconds kLastWords{500};    // the same where its own launcher knows it at once

std::string find_program(const std::string& name) {
  auto runs = [](const fs::path& file) {
    std::error_code ignored;
    return fs::is_regular_file(file, ignored) && ::access(file.c_str(), X_OK) == 0;
  };
  if (name.find('/') != std::string::npos) {
    if (runs(name)) return name;
    throw_error<ConfigError>("[launch] '{}' is not a program that can be run{}", name,
                             base::exists(name) ? " (chmod +x?)" : ": there is no such file");
  }
  const char* variable = std::getenv("PATH");
  std::string folders = variable == nullptr ? "/usr/bin:/bin" : variable;
  for (size_t begin = 0; begin <= folders.size();) {
    size_t end = std::min(folders.find(':', begin), folders.size());
    fs::path file = fs::path(folders.substr(begin, end - begin)) / name;
    if (end > begin && runs(file)) return file;
    begin = end + 1;
  }
  if (name == "bonfire") return own_program();
  throw_error<ConfigError>("[launch] there is no program '{}' in PATH; one in this folder is ./{}", name, name);
}

std::string token_for(const LaunchOptions& options) {
  std::string token = comm::read_token([](const char* name) { return std::getenv(name); });
  if (!token.empty()) return token;
  if (options.nodes == 1) return comm::random_secret();
  throw_error<ConfigError>(
      "[launch] a job on several hosts needs a secret that keeps strangers out: put the same text into BONFIRE_TOKEN, "
      "or "
      "into a file that BONFIRE_TOKEN_FILE names, on every host (openssl rand -hex 16 makes one)");
}

void check(const LaunchOptions& o) {
  auto refuse = [](const std::string& what) { throw_error<ConfigError>("[launch] {}", what); };
  if (o.ranks < 1) refuse(fmt::format("--nproc_per_node is {}, expected at least 1", o.ranks));
  if (o.ranks > base::most_tasks())
    refuse(
        fmt::format("--nproc_per_node is {}, expected at most {} ranks on this machine", o.ranks, base::most_tasks()));
  if (o.nodes < 1) refuse(fmt::format("--nnodes is {}, expected at least 1", o.nodes));
  if (o.node < 0 || o.node >= o.nodes)
    refuse(fmt::format("--node_rank is {}, expected 0 to {} (--nnodes is {})", o.node, o.nodes - 1, o.nodes));
  if (o.master_port < 0 || o.master_port > 65535)
    refuse(fmt::format("--master_port is {}, expected 1 to 65535", o.master_port));
  if (o.rendezvous_timeout.count() < 0) refuse("--rendezvous_timeout cannot be below 0");
  if (o.node_timeout.count() < 1000) refuse("--node_timeout is less than 1 s");
  if (o.rank_timeout.count() != 0 && o.rank_timeout.count() < 3000)
    refuse("--rank_timeout is less than 3 s, in which a busy host may not let a rank speak; 0 switches it off");
  if (o.max_restarts < 0) refuse(fmt::format("--max_restarts is {}, expected at least 0", o.max_restarts));
}

class Launcher {
 public:
  Launcher(const LaunchOptions& options, std::string program, std::string token, int outer)
      : options_(options), program_(std::move(program)), token_(std::move(token)), outer_(outer) {
    sigset_t watched;
    sigemptyset(&watched);
    for (int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&watched, number);
    signals_ = ::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    ::signal(SIGPIPE, SIG_IGN);  // nobody may be reading
    ::signal(SIGTTOU, SIG_IGN);  // this is not the terminal's foreground group
    int port = options.master_port == 0 && options.nodes > 1 ? kDefaultPort : options.master_port;
    nodes_ = join_nodes({.nodes = options.nodes,
                         .node = options.node,
                         .ranks = options.ranks,
                         .address = options.master_address,
                         .port = port,
                         .token = token_,
                         .program = program_,
                         .max_restarts = options.max_restarts,
                         .timeout = options.rendezvous_timeout,
                         .silence = options.node_timeout,
                         .rank_silence = options.rank_timeout});
  }

  int run() {
    while (!exit_code_) {
      wait_for_something();
      if (abort_at_ && Clock::now() >= *abort_at_) abort_ranks();
      if (kill_at_ && Clock::now() >= *kill_at_) kill_ranks();
      if (blame_at_ && Clock::now() >= *blame_at_) blame_unless_too_early();
    }
    end_descendants();  // before the store is closed
    return *exit_code_;
  }

 private:
  void wait_for_something() {
    std::vector<pollfd> sources{{outer_, POLLIN, 0}, {signals_, POLLIN, 0}, {nodes_->descriptor(), POLLIN, 0}};
    std::vector<RankProcess*> owners;
    for (const auto& rank : ranks_)
      for (int pipe : rank->pipes()) {
        sources.push_back({pipe, POLLIN, 0});
        owners.push_back(rank.get());
      }
    if (::poll(sources.data(), sources.size(), milliseconds_left()) <= 0) return;
    if (sources[0].revents != 0) exit_code_ = 128 + SIGKILL;  // the process that the user sees is dead
    for (size_t i = 3; i < sources.size(); ++i)
      if (sources[i].revents != 0) owners[i - 3]->read(sources[i].fd);
    if (sources[1].revents != 0) take_signals();
    if (sources[2].revents != 0)
      while (std::optional<Event> event = nodes_->event()) take(*event);
  }

  int milliseconds_left() const {
    if (!kill_at_ && !blame_at_ && !abort_at_) return -1;
    constexpr auto kNever = Clock::time_point::max();
    const Clock::time_point next =
        std::min({kill_at_.value_or(kNever), blame_at_.value_or(kNever), abort_at_.value_or(kNever)});
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next - Clock::now());
    return static_cast<int>(std::max<int64_t>(0, left.count() + 1));
  }

  void take_signals() {
    signalfd_siginfo info{};
    while (::read(signals_, &info, sizeof info) == sizeof info)
      if (info.ssi_signo == SIGCHLD)
        reap();
      else
        stop(static_cast<int>(info.ssi_signo));
  }

  void reap() {
    int status = 0;
    for (int process; (process = ::waitpid(-1, &status, WNOHANG)) > 0;)
      for (const auto& rank : ranks_)  // others were adopted
        if (rank->process() == process) {
          rank->ended(status);
          if (rank->failed()) failures_.push_back(rank.get());
        }
    if (state_ == State::running && !failures_.empty()) {
      const std::chrono::milliseconds wait = wait_for_news();
      if (wait.count() == 0) return blame();
      blame_at_ = std::min(blame_at_.value_or(Clock::time_point::max()), Clock::now() + wait);
    } else if (none_runs()) {
      if (state_ == State::running) {
        state_ = State::waiting;
        nodes_->ranks_done();
      } else if (state_ == State::ending) {
        all_gone();
      }
    }
  }

  // How surely a rank has failed by itself: whom a signal killed was hardly the victim of another, unless it is the one
  // by which a program ends that catches no errors.
  static int fault(const RankProcess& rank) {
    if (rank.exit_code() == kLostPeer) return 0;
    return rank.exit_code() < 128 || rank.exit_code() == 128 + SIGABRT ? 1 : 2;
  }

  // Of a rank on another host one hears a little later than of those that have lost it. So who may be a victim is not
  // blamed before news could have come; 0: blame at once.
  std::chrono::milliseconds wait_for_news() const {
    const int sure = fault(*culprit());
    if (sure == 2 || (options_.nodes == 1 && (sure == 1 || none_runs()))) return {};
    return sure == 1 ? nodes_->news_delay() / 2 : nodes_->news_delay();
  }

  const RankProcess* culprit() const {
    return *std::max_element(failures_.begin(), failures_.end(),
                             [](auto* a, auto* b) { return fault(*a) < fault(*b); });
  }

  // Victims of a node that is not heard wait until it is, or is lost.
  void blame_unless_too_early() {
    const bool may_be_victim = !frozen_ && !failures_.empty() && fault(*culprit()) == 0;
    if (!may_be_victim || nodes_->silence() <= nodes_->news_delay()) return blame();
    blame_at_ = Clock::now() + nodes_->news_delay();
  }

  void blame() {
    blame_at_.reset();
    state_ = State::waiting;
    if (frozen_ && (failures_.empty() || fault(*culprit()) < 2)) return blame_frozen();
    failure_code_ = culprit()->exit_code();
    nodes_->rank_failed(culprit()->obituary());
  }

  void blame_frozen() {
    failure_code_ = 128 + SIGKILL;
    RankProcess* mine = find(frozen_->rank);
    if (mine != nullptr) mine->signal(SIGKILL);  // the only one that a stopped process hears
    nodes_->rank_failed(mine != nullptr ? mine->story(frozen_->reason) : frozen_->name + " " + frozen_->reason);
  }

  // Its own launcher says so when the other ranks have had time to do the same; the launchers of other hosts only when
  // it is what their ranks have ended of.
  void note_frozen(const Event& event) {
    if (state_ != State::running || event.generation != generation_) return;
    RankProcess* mine = find(event.rank);
    if (mine != nullptr && !mine->running()) return;
    frozen_ = event;
    if (mine != nullptr && !blame_at_) blame_at_ = Clock::now() + kWordsDelay;
  }

  RankProcess* find(int number) const {
    for (const auto& rank : ranks_)
      if (rank->rank() == number) return rank.get();
    return nullptr;
  }

  void take(const Event& event) {
    switch (event.kind) {
      case Event::Kind::start: return start(event);
      case Event::Kind::frozen: return note_frozen(event);
      case Event::Kind::failed:
        if (stop_signal_ == 0) base::log_error("bonfire launch: {}", event.reason);
        return end_ranks_after_words();
      case Event::Kind::stopped:
        if (stop_signal_ != 0) return;
        base::log_info("bonfire launch: {}", event.reason);
        stop_signal_ = SIGINT;
        return end_ranks(SIGINT, options_.stop_grace);
      case Event::Kind::finished: return finish();
      case Event::Kind::over:
        if (!event.reason.empty()) base::log_error("bonfire launch: {}", event.reason);
        exit_code_ = stop_signal_ != 0 ? 128 + stop_signal_ : failure_code_;
    }
  }

  void finish() {
    const bool well = std::all_of(ranks_.begin(), ranks_.end(), [](auto& rank) { return rank->ended_well(); });
    if (!well)
      base::log_warning("bonfire launch: the job was declared done, though not every rank here has ended well");
    exit_code_ = well ? 0 : failures_.empty() ? 1 : culprit()->exit_code();
  }

  void start(const Event& event) {
    if (stop_signal_ != 0) {
      nodes_->asked_to_stop();
      return nodes_->ranks_gone();
    }
    if (event.generation > 0)
      base::log_warning("bonfire launch: restart {} of {}", event.generation, event.max_restarts);
    generation_ = event.generation;
    frozen_.reset();
    failures_.clear();
    ranks_.clear();
    failure_code_ = 1;
    for (int local = 0; local < options_.ranks; ++local) {
      int rank = event.first_rank + local;
      fs::path log;
      if (!options_.log_folder.empty())
        log = options_.log_folder / fmt::format("restart_{}", event.generation) / fmt::format("rank_{}.log", rank);
      ranks_.push_back(std::make_unique<RankProcess>(
          RankCommand{rank, program_, options_.arguments, environment_of(event, local), log}));
    }
    state_ = State::running;
  }

  std::vector<std::string> environment_of(const Event& event, int local) const {
    std::vector<std::pair<std::string, std::string>> set{
        {"RANK", std::to_string(event.first_rank + local)},
        {"WORLD_SIZE", std::to_string(event.world)},
        {"LOCAL_RANK", std::to_string(local)},
        {"LOCAL_WORLD_SIZE", std::to_string(options_.ranks)},
        {"GROUP_RANK", std::to_string(options_.node)},
        {"MASTER_ADDR", options_.master_address},
        {"MASTER_PORT", std::to_string(nodes_->port())},
        {"BONFIRE_GENERATION", std::to_string(event.generation)},
        {"BONFIRE_JOB", job_},
        {"BONFIRE_TOKEN", token_},
        {"BONFIRE_NODE_TIMEOUT", std::to_string(event.node_timeout.count())},
        {"TORCHELASTIC_USE_AGENT_STORE", "False"},
    };
    std::string threads = std::to_string(std::max(1, available_cores() / options_.ranks));
    for (const char* name : {"BONFIRE_CPU_THREADS", "OMP_NUM_THREADS"})
      if (std::getenv(name) == nullptr) set.emplace_back(name, threads);
    std::vector<std::string> all;
    for (char** one = environ; *one != nullptr; ++one) {
      std::string text = *one;
      if (std::none_of(set.begin(), set.end(), [&](auto& pair) { return text.starts_with(pair.first + "="); }))
        all.push_back(text);
    }
    for (const auto& [name, value] : set) all.push_back(fmt::format("{}={}", name, value));
    return all;
  }

  void stop(int number) {
    stop_signal_ = number;
    if (ranks_.empty()) {  // other hosts are being waited for
      exit_code_ = 128 + number;
      return;
    }
    if (state_ == State::running) {
      base::log_info("bonfire launch: stopping; the ranks have {} s", options_.stop_grace.count() / 1000);
      nodes_->asked_to_stop();
      end_ranks(number, options_.stop_grace);
    }
  }

  void end_ranks(int number, std::chrono::milliseconds grace) {
    state_ = State::ending;
    blame_at_.reset();
    for (const auto& rank : ranks_) rank->signal(number);
    kill_at_ = Clock::now() + grace;
    if (none_runs()) all_gone();
  }

  // Those that have lost the one that failed end by themselves, and say where they have waited for it.
  void end_ranks_after_words() {
    state_ = State::ending;
    blame_at_.reset();
    abort_at_ = Clock::now() + kLastWords;
    kill_at_ = *abort_at_ + options_.end_grace;
    if (none_runs()) all_gone();
  }

  void abort_ranks() {
    abort_at_.reset();
    for (const auto& rank : ranks_) rank->signal(kAbort);
  }

  void kill_ranks() {
    end_descendants();
    for (const auto& rank : ranks_)
      if (rank->running()) rank->ended(SIGKILL);
    all_gone();
  }

  void all_gone() {
    kill_at_.reset();
    abort_at_.reset();
    end_descendants();  // what the ranks had started
    state_ = State::waiting;
    nodes_->ranks_gone();
  }

  bool none_runs() const {
    return std::none_of(ranks_.begin(), ranks_.end(), [](auto& rank) { return rank->running(); });
  }

  // waiting: for an event. ending: the ranks were told to leave.
  enum class State { waiting, running, ending };

  const LaunchOptions& options_;
  std::string program_, token_;
  std::string job_ = comm::random_secret();  // the same after a restart
  int outer_;                                // can be read when the outer process is dead
  int signals_ = -1;                         // signalfd
  std::unique_ptr<Nodes> nodes_;
  State state_ = State::waiting;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  std::vector<const RankProcess*> failures_;  // of ranks_
  int64_t generation_ = 0;
  std::optional<Event> frozen_;  // the last of that kind
  std::optional<Clock::time_point> kill_at_, blame_at_, abort_at_;
  int stop_signal_ = 0;
  int failure_code_ = 1;
  std::optional<int> exit_code_;
};

}  // namespace

int exit_status_of(const std::exception& error) { return comm::is_lost_peer(error) ? kLostPeer : 1; }

fs::path own_program() {
  std::error_code error;
  fs::path file = fs::read_symlink("/proc/self/exe", error);
  if (error)
    throw_error<ConfigError>(
        "[launch] /proc/self/exe: {}; programs are started and watched through /proc: mount it (mount -t proc proc "
        "/proc)",
        error.message());
  return file;
}

int launch(const LaunchOptions& options) {
  check(options);
  own_program();  // without /proc nobody could tell who is left behind
  std::string program = find_program(options.program), token = token_for(options);
  return run_guarded([&](int outer) { return Launcher(options, program, token, outer).run(); }, options.node_timeout);
}

}  // namespace bonfire::launch
