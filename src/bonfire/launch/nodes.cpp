#include "bonfire/launch/nodes.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <deque>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/base/md5.h"
#include "bonfire/comm/network.h"
#include "bonfire/comm/rendezvous.h"
#include "bonfire/comm/store_client.h"
#include "bonfire/comm/store_server.h"
#include "bonfire/comm/wait_notice.h"

namespace bonfire::launch {

namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kSlice = 200ms;         // how often a waiting thread looks up
constexpr milliseconds kUntilGone = 40'000ms;  // for all ranks of all nodes to leave, and be killed

// Events on their way from threads to the loop.
class EventQueue {
 public:
  EventQueue() : descriptor_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE)) {}
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;
  ~EventQueue() { ::close(descriptor_); }

  int descriptor() const { return descriptor_; }
  void put(Event event) {
    std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    ::eventfd_write(descriptor_, 1);
  }
  std::optional<Event> take() {
    std::lock_guard lock(mutex_);
    if (events_.empty()) return std::nullopt;
    eventfd_t count;
    ::eventfd_read(descriptor_, &count);
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  int descriptor_;
  std::mutex mutex_;
  std::deque<Event> events_;
};

Event frozen_event(const comm::LifeSign& rank, int64_t generation, milliseconds silence) {
  return {.kind = Event::Kind::frozen,
          .generation = generation,
          .rank = rank.rank,
          .name = rank.name,
          .reason = fmt::format("is frozen: it has given no sign of life for {} s, and was last seen in {}",
                                static_cast<double>(silence.count()) / 1000, rank.doing)};
}

using OnFrozen = std::function<void(const comm::LifeSign&, int64_t generation)>;

std::unique_ptr<comm::StoreServer> serve(const NodeOptions& options, const OnFrozen& on_frozen = {}) {
  if (options.node != 0) return nullptr;
  std::string address = comm::resolve(options.address);
  if (options.nodes > 1 && comm::is_loopback(address))
    std::fprintf(stderr,
                 "bonfire launch: --master_addr %s is %s here, which only this host can reach; its addresses are %s\n",
                 options.address.c_str(), address.c_str(), comm::list_of(comm::interfaces()).c_str());
  return comm::serve_store({.address = address,
                            .port = options.port,
                            .token = options.token,
                            .tls = comm::read_tls(),
                            .ranks = options.nodes == 1 ? options.ranks : 0,  // many hosts': once they have come
                            .silence = options.rank_silence,
                            .on_frozen = on_frozen});
}

class SingleHost final : public Nodes {
 public:
  explicit SingleHost(const NodeOptions& options)
      : options_(options), server_(serve(options, [this](const comm::LifeSign& rank, int64_t generation) {
          events_.put(frozen_event(rank, generation, options_.rank_silence));
        })) {
    start();
  }
  int port() const override { return server_->port(); }
  int descriptor() const override { return events_.descriptor(); }
  std::optional<Event> event() override { return events_.take(); }
  void ranks_done() override { events_.put({.kind = Event::Kind::finished}); }
  void rank_failed(const std::string& reason) override {
    events_.put({.kind = Event::Kind::failed, .generation = generation_, .reason = reason});
  }
  void asked_to_stop() override { stopped_ = true; }
  void ranks_gone() override {
    if (stopped_ || generation_ >= options_.max_restarts) return events_.put({.kind = Event::Kind::over});
    server_->begin_generation(++generation_);
    start();
  }

 private:
  void start() {
    events_.put({.kind = Event::Kind::start, .generation = generation_, .first_rank = 0, .world = options_.ranks});
  }

  NodeOptions options_;
  EventQueue events_;
  std::unique_ptr<comm::StoreServer> server_;  // its threads put events
  int64_t generation_ = 0;
  bool stopped_ = false;
};

json description(const NodeOptions& options) {
  utsname system{};
  ::uname(&system);
  return {{"host", comm::host_name()},
          {"ranks", options.ranks},
          {"version", comm::library_version()},
          {"processor", system.machine},
          {"program", base::md5(base::read_file(options.program))}};
}

// Why two nodes cannot be in one job; empty: they can.
std::string difference(int node, const json& zero, const json& other) {
  std::string where = fmt::format("node {} ({})", node, other.at("host").get<std::string>());
  if (zero.at("version") != other.at("version"))
    return fmt::format("{} has Bonfire {}, node 0 has {}; install one version everywhere", where,
                       other.at("version").get<std::string>(), zero.at("version").get<std::string>());
  if (zero.at("processor") == other.at("processor") && zero.at("program") != other.at("program"))
    return fmt::format("the program on {} is another one than on node 0 (MD5 {} and {}); copy one to all hosts", where,
                       other.at("program").get<std::string>(), zero.at("program").get<std::string>());
  return {};
}

// What the two threads and the loop of one launcher share. The threads may be in a call to another host when the
// launcher ends; they own it together.
struct Talk {
  NodeOptions options;
  std::unique_ptr<comm::StoreServer> server;  // node 0's
  EventQueue events;

  // What the loop has said and the node's thread has not yet passed on.
  struct News {
    bool done = false, gone = false;
    json verdict = {};
  };
  std::mutex mutex;
  News news;

  std::shared_ptr<comm::Store> connect(const char* role) const {
    return comm::connect_store({.host = options.address,
                                .port = options.port,
                                .token = options.token,
                                .tls = comm::read_tls(),
                                .caller = fmt::format("{} of node {}", role, options.node),
                                .holder = "node 0's launcher",
                                .connect_timeout = options.timeout,
                                .silence = options.silence});
  }
  std::vector<std::string> keys(const std::string& kind) const {
    std::vector<std::string> all;
    for (int node = 0; node < options.nodes; ++node) all.push_back(fmt::format("{}/{}", kind, node));
    return all;
  }
};

std::optional<std::string> get_now(comm::Store& store, const std::string& key) {
  try {
    return store.get(key, 0ms);
  } catch (const TimeoutError&) {
    return std::nullopt;
  }
}

bool all_there(comm::Store& store, const std::vector<std::string>& keys, milliseconds timeout) {
  try {
    store.wait(keys, timeout);
    return true;
  } catch (const TimeoutError&) {
    return false;
  }
}

// The first verdict on a generation stands.
void give_verdict(comm::Store& store, int64_t generation, const json& verdict) {
  if (store.add(fmt::format("{}/verdicts", generation), 1) == 1)
    store.set(fmt::format("{}/verdict", generation), verdict.dump());
}

// A node's part: tells the store what happens here, and the loop what happens elsewhere.
class Node {
 public:
  explicit Node(std::shared_ptr<Talk> talk) : talk_(std::move(talk)), options_(talk_->options) {}

  void run() {
    store_ = talk_->connect("launcher");
    store_->set(fmt::format("node/{}", options_.node), description(options_).dump());
    json plan = json::parse(await_plan());
    if (plan.contains("refused")) return leave({.kind = Event::Kind::over, .reason = plan.at("refused")});
    for (int64_t generation = 0;; ++generation) {
      {
        std::lock_guard lock(talk_->mutex);
        talk_->news = {};
      }
      talk_->events.put({.kind = Event::Kind::start,
                         .generation = generation,
                         .first_rank = plan.at("first").at(static_cast<size_t>(options_.node)),
                         .world = plan.at("world")});
      json verdict = json::parse(await(fmt::format("{}/verdict", generation), generation));
      if (verdict.at("how") == "done") return leave({.kind = Event::Kind::finished});
      talk_->events.put({.kind = verdict.at("how") == "failed" ? Event::Kind::failed : Event::Kind::stopped,
                         .generation = generation,
                         .reason = verdict.at("why")});
      if (await(fmt::format("{}/next", generation), generation) != "start") return leave({.kind = Event::Kind::over});
    }
  }

 private:
  // Node 0's launcher itself says whom it waits for.
  std::string await_plan() {
    comm::WaitNotice notice(fmt::format("launcher of node {}", options_.node));
    return await("plan", 0, [&] {
      if (options_.node != 0)
        notice.look([&] { return fmt::format("node 0 ({}), which waits for all nodes to come", options_.address); });
    });
  }

  // Passes news on while it waits.
  std::string await(
      const std::string& key, int64_t generation, const std::function<void()>& waiting = [] {}) {
    for (;; waiting()) {
      pass_on(generation);
      store_->add(fmt::format("beat/{}", options_.node), 1);
      tell_of_frozen_ranks(generation);
      try {
        return store_->get(key, kSlice);
      } catch (const TimeoutError&) {
      }
    }
  }

  void pass_on(int64_t generation) {
    Talk::News news;
    {
      std::lock_guard lock(talk_->mutex);
      std::swap(news, talk_->news);
    }
    if (!news.verdict.is_null()) give_verdict(*store_, generation, news.verdict);
    if (news.done) store_->set(fmt::format("{}/done/{}", generation, options_.node), "");
    if (news.gone) store_->set(fmt::format("{}/gone/{}", generation, options_.node), "");
  }

  void tell_of_frozen_ranks(int64_t generation) {
    if (generation != told_generation_) told_.clear();
    told_generation_ = generation;
    for (const comm::LifeSign& rank : store_->frozen_ranks())
      if (told_.insert(rank.rank).second) talk_->events.put(frozen_event(rank, generation, options_.rank_silence));
  }

  // Node 0, which takes the store with it, leaves behind all that still live.
  void leave(const Event& last) {
    if (options_.node != 0) store_->set(fmt::format("left/{}", options_.node), "");
    for (int node = 1; options_.node == 0 && node < options_.nodes; ++node) {
      if (!get_now(*store_, fmt::format("node/{}", node))) continue;  // never came
      std::optional<std::string> beat = get_now(*store_, fmt::format("beat/{}", node)), before;
      while (!all_there(*store_, {fmt::format("left/{}", node)}, 1s)) {
        before = std::exchange(beat, get_now(*store_, fmt::format("beat/{}", node)));
        if (beat == before) break;
      }
    }
    talk_->events.put(last);
  }

  std::shared_ptr<Talk> talk_;
  const NodeOptions& options_;
  std::shared_ptr<comm::Store> store_;
  int64_t told_generation_ = 0;
  std::set<int> told_;  // frozen ranks that the loop knows of
};

// Node 0's further part: makes the plan, notices the end of a generation, and decides what comes next.
class Chief {
 public:
  explicit Chief(std::shared_ptr<Talk> talk) : talk_(std::move(talk)), options_(talk_->options) {}

  void run() {
    store_ = talk_->connect("chief");
    json plan = make_plan();
    if (!plan.contains("refused")) talk_->server->expect_ranks(plan.at("world"));
    store_->set("plan", plan.dump());
    if (plan.contains("refused")) return;
    for (int64_t generation = 0;; ++generation) {
      json verdict = supervise(generation);
      if (verdict.at("how") == "done") return;
      bool again =
          all_gone(generation) && verdict.at("how") == "failed" && lost_ < 0 && generation < options_.max_restarts;
      if (again) talk_->server->begin_generation(generation + 1);
      store_->set(fmt::format("{}/next", generation), again ? "start" : "end");
      if (!again) return;
    }
  }

 private:
  json make_plan() {
    const std::vector<int> missing = wait_for_nodes();
    if (!missing.empty())
      return {{"refused", fmt::format("of {} nodes these never came within {} s: {}; is bonfire launch running there, "
                                      "with this --master_addr and --master_port?",
                                      options_.nodes, static_cast<double>(options_.timeout.count()) / 1000,
                                      fmt::join(missing, ", "))}};
    json plan{{"first", json::array()}, {"world", 0}};
    json zero = json::parse(store_->get("node/0", 1s));
    for (int node = 0; node < options_.nodes; ++node) {
      json one = json::parse(store_->get(fmt::format("node/{}", node), 1s));
      if (std::string why = difference(node, zero, one); !why.empty()) return {{"refused", why}};
      hosts_.push_back(one.at("host"));
      plan["first"].push_back(plan.at("world"));
      plan["world"] = plan.at("world").get<int>() + one.at("ranks").get<int>();
    }
    beats_.assign(static_cast<size_t>(options_.nodes), {"", Clock::now()});
    return plan;
  }

  // Those that never came.
  std::vector<int> wait_for_nodes() {
    auto missing = [&] {
      std::vector<int> nodes;
      for (int node = 0; node < options_.nodes; ++node)
        if (!get_now(*store_, fmt::format("node/{}", node))) nodes.push_back(node);
      return nodes;
    };
    const Clock::time_point deadline = Clock::now() + options_.timeout;
    comm::WaitNotice notice("launcher of node 0");
    while (Clock::now() < deadline) {
      const auto left = std::min(deadline, notice.next()) - Clock::now();
      if (all_there(*store_, talk_->keys("node"), std::max(std::chrono::ceil<milliseconds>(left), 0ms))) return {};
      notice.look(
          [&] { return fmt::format("the launchers of nodes {} (of {})", fmt::join(missing(), ", "), options_.nodes); });
    }
    return missing();
  }

  json supervise(int64_t generation) {
    std::string verdict = fmt::format("{}/verdict", generation);
    for (;;) {
      if (all_there(*store_, talk_->keys(fmt::format("{}/done", generation)), kSlice))
        give_verdict(*store_, generation, {{"how", "done"}});
      else
        look_for_lost_nodes(generation);
      if (std::optional<std::string> text = get_now(*store_, verdict)) return json::parse(*text);
    }
  }

  // Waits for the ranks of all nodes but a lost one to be gone.
  bool all_gone(int64_t generation) {
    for (auto end = Clock::now() + kUntilGone; Clock::now() < end; look_for_lost_nodes(generation)) {
      std::vector<std::string> gone;
      for (int node = 0; node < options_.nodes; ++node)
        if (node != lost_) gone.push_back(fmt::format("{}/gone/{}", generation, node));
      if (all_there(*store_, gone, kSlice)) return true;
    }
    return false;
  }

  void look_for_lost_nodes(int64_t generation) {
    for (int node = 1; node < options_.nodes; ++node) {
      auto& [count, since] = beats_[static_cast<size_t>(node)];
      std::string now = get_now(*store_, fmt::format("beat/{}", node)).value_or("");
      if (now != count) {
        count = now;
        since = Clock::now();
      } else if (Clock::now() - since > options_.silence && lost_ < 0) {
        lost_ = node;
        give_verdict(
            *store_, generation,
            {{"how", "failed"},
             {"why",
              fmt::format("node {} ({}) is lost: its launcher has said nothing for {} s; it has ended, or the hosts "
                          "{} (node 0) and {} (node {}) have lost each other",
                          node, hosts_[static_cast<size_t>(node)], static_cast<double>(options_.silence.count()) / 1000,
                          hosts_[0], hosts_[static_cast<size_t>(node)], node)}});
      }
    }
  }

  std::shared_ptr<Talk> talk_;
  const NodeOptions& options_;
  std::shared_ptr<comm::Store> store_;
  std::vector<std::string> hosts_;                                // [nodes]
  std::vector<std::pair<std::string, Clock::time_point>> beats_;  // [nodes]: the count, and since when it stands
  int lost_ = -1;
};

class ManyHosts final : public Nodes {
 public:
  explicit ManyHosts(const NodeOptions& options) : talk_(std::make_shared<Talk>()) {
    talk_->options = options;
    talk_->server = serve(options);
    if (options.node == 0) in_a_thread<Chief>();
    in_a_thread<Node>();
  }

  int port() const override { return talk_->options.port; }
  int descriptor() const override { return talk_->events.descriptor(); }
  std::optional<Event> event() override { return talk_->events.take(); }
  void ranks_done() override {
    std::lock_guard lock(talk_->mutex);
    talk_->news.done = true;
  }
  void rank_failed(const std::string& reason) override { say("failed", reason); }
  void asked_to_stop() override {
    say("stopped", fmt::format("node {} ({}) was asked to stop", talk_->options.node, comm::host_name()));
  }
  void ranks_gone() override {
    std::lock_guard lock(talk_->mutex);
    talk_->news.gone = true;
  }

 private:
  void say(const char* how, const std::string& why) {
    std::lock_guard lock(talk_->mutex);
    if (talk_->news.verdict.is_null()) talk_->news.verdict = {{"how", how}, {"why", why}};
  }

  template <class Part>
  void in_a_thread() {
    std::thread([talk = talk_] {
      try {
        Part(talk).run();
      } catch (const Error& error) {
        const NodeOptions& options = talk->options;
        std::string why = error.what();
        if (options.node != 0)
          why = fmt::format("node 0 is out of reach: {}; the hosts {} (node {}) and {} (node 0) have lost each other",
                            why, comm::host_name(), options.node, options.address);
        talk->events.put({.kind = Event::Kind::over, .reason = why});
      }
    }).detach();
  }

  std::shared_ptr<Talk> talk_;
};

}  // namespace

std::unique_ptr<Nodes> join_nodes(const NodeOptions& options) {
  if (options.nodes == 1) return std::make_unique<SingleHost>(options);
  return std::make_unique<ManyHosts>(options);
}

}  // namespace bonfire::launch
