#include "bonfire/launch/nodes.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/base/log.h"
#include "bonfire/base/md5.h"
#include "bonfire/comm/network.h"
#include "bonfire/comm/rendezvous.h"
#include "bonfire/comm/store_client.h"
#include "bonfire/comm/store_server.h"
#include "bonfire/comm/wait_notice.h"
#include "bonfire/launch/event_queue.h"

namespace bonfire::launch {

namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kSlice = 200ms;           // how often a waiting thread looks up
constexpr milliseconds kUntilGone = 40'000ms;    // for all ranks of all nodes to leave, and be killed
constexpr milliseconds kNews = 1'000ms;          // in which a rank that failed by itself ends, after its victims
constexpr int kAnswersOfNews = 12;               // of the store's answers, until what a launcher knows is known to all
constexpr int kAnswersOfSign = 6;                // until one that connects again is heard
constexpr milliseconds kUntilLeft = 1'500ms;     // a launcher that is still there is heard by then
constexpr milliseconds kLateLook = 2'000ms;      // whoever looks so late was held up himself
constexpr milliseconds kWorthTelling = 3'000ms;  // of silence
constexpr milliseconds kUnheard = 500ms;         // a launcher whose connection broke off would say something by then

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
    base::log_warning(
        "bonfire launch: --master_addr {} is {} here, which only this host can reach; its addresses are {}",
        options.address, address, comm::list_of(comm::interfaces()));
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
  milliseconds news_delay() const override { return kNews; }
  milliseconds silence() const override { return {}; }
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
    events_.put({.kind = Event::Kind::start,
                 .generation = generation_,
                 .first_rank = 0,
                 .world = options_.ranks,
                 .max_restarts = options_.max_restarts,
                 .node_timeout = options_.silence});
  }

  NodeOptions options_;
  EventQueue events_;
  std::unique_ptr<comm::StoreServer> server_;  // its threads put events
  int64_t generation_ = 0;
  bool stopped_ = false;
};

json description(const NodeOptions& options, const std::string& address) {
  utsname system{};
  ::uname(&system);
  return {{"host", comm::host_name()},
          {"address", address},
          {"process", ::getpid()},
          {"begun", Clock::now().time_since_epoch().count()},  // two hosts may be alike in all else
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

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

// What the threads and the loop of one launcher share. The threads may be in a call to another host when the
// launcher ends; they own it together.
struct Talk {
  NodeOptions options;
  std::unique_ptr<comm::StoreServer> server;  // node 0's
  EventQueue events;

  // What the loop has said and was not yet passed on.
  struct News {
    bool done = false, gone = false;
    json verdict = {};
    bool any() const { return done || gone || !verdict.is_null(); }
  };
  std::mutex mutex;
  std::condition_variable told;
  News news;
  int64_t generation = 0;                   // that it is about
  std::shared_ptr<comm::Store> store;       // of the node
  std::atomic<int64_t> slowest_answer{0};   // ms that the store takes for any of the launchers, of late
  std::atomic<int64_t> longest_silence{0};  // ms, of any of the launchers, when the store has answered last
  std::atomic<Clock::time_point> answered = Clock::now();  // that was
  bool over = false;                                       // nothing is to be passed on any more

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
  store.claim(fmt::format("{}/verdict", generation), verdict.dump());
}

// Passes on what the loop has said, at once: others wait for it.
class Messages {
 public:
  explicit Messages(std::shared_ptr<Talk> talk) : talk_(std::move(talk)) {}

  void run() {
    for (;;) {
      std::unique_lock lock(talk_->mutex);
      talk_->told.wait(lock, [&] { return talk_->over || (talk_->store != nullptr && talk_->news.any()); });
      if (!talk_->news.any()) return;
      const Talk::News news = std::exchange(talk_->news, {});
      const int64_t generation = talk_->generation;
      const std::shared_ptr<comm::Store> store = talk_->store;
      lock.unlock();
      if (!news.verdict.is_null()) give_verdict(*store, generation, news.verdict);
      if (news.done) store->set(fmt::format("{}/done/{}", generation, talk_->options.node), "");
      if (news.gone) store->set(fmt::format("{}/gone/{}", generation, talk_->options.node), "");
    }
  }

 private:
  std::shared_ptr<Talk> talk_;
};

// A node's part: tells the store what happens here, and the loop what happens elsewhere.
class Node {
 public:
  explicit Node(std::shared_ptr<Talk> talk) : talk_(std::move(talk)), options_(talk_->options) {}

  void run() {
    join();
    if (std::string taken = claim(); !taken.empty())
      return talk_->events.put({.kind = Event::Kind::over, .reason = taken});
    store_->stay(options_.node);
    json plan = json::parse(await_plan());
    if (plan.contains("refused")) return leave({.kind = Event::Kind::over, .reason = plan.at("refused")});
    for (int64_t generation = 0;; ++generation) {
      {
        std::lock_guard lock(talk_->mutex);
        talk_->news = {};
        talk_->generation = generation;
        talk_->store = store_;
      }
      talk_->events.put({.kind = Event::Kind::start,
                         .generation = generation,
                         .first_rank = plan.at("first").at(static_cast<size_t>(options_.node)),
                         .world = plan.at("world"),
                         .max_restarts = options_.max_restarts,
                         .node_timeout = options_.silence});
      json verdict = json::parse(await(fmt::format("{}/verdict", generation), generation));
      if (verdict.at("how") == "done") return leave({.kind = Event::Kind::finished});
      talk_->events.put({.kind = verdict.at("how") == "failed" ? Event::Kind::failed : Event::Kind::stopped,
                         .generation = generation,
                         .reason = verdict.at("why")});
      const json next = json::parse(await(fmt::format("{}/next", generation), generation));
      if (!next.at("start")) return leave({.kind = Event::Kind::over, .reason = next.at("why")});
    }
  }

 private:
  // What node 0 was told holds here too.
  void join() {
    store_ = talk_->connect("launcher");
    const json settings = json::parse(store_->get("settings", options_.timeout));
    options_.rank_silence = milliseconds(settings.at("rank_timeout"));
    options_.max_restarts = settings.at("max_restarts");
    const milliseconds silence(settings.at("node_timeout"));
    if (silence == options_.silence) return;
    talk_->options.silence = options_.silence = silence;
    store_ = talk_->connect("launcher");
  }

  // Who was here before; "": nobody.
  std::string claim() {
    const std::string address = comm::reach(options_.address, options_.port, options_.timeout).local;
    const std::string mine = description(options_, address).dump();
    const std::string stands = store_->claim(fmt::format("node/{}", options_.node), mine);
    if (stands == mine) return {};
    const json first = json::parse(stands);
    return fmt::format(
        "--node_rank {} is taken: it is {} ({}, process {}) since this job was started; give each host a node rank of "
        "its own, from 0 to {}",
        options_.node, first.at("host").get<std::string>(), first.at("address").get<std::string>(),
        first.at("process").get<int64_t>(), options_.nodes - 1);
  }

  // Node 0's launcher itself says whom it waits for.
  std::string await_plan() {
    comm::WaitNotice notice(fmt::format("launcher of node {}", options_.node));
    return await("plan", 0, [&] {
      if (options_.node != 0)
        notice.look([&] { return fmt::format("node 0 ({}), which waits for all nodes to come", options_.address); });
    });
  }

  // Gives signs of life while it waits.
  std::string await(
      const std::string& key, int64_t generation, const std::function<void()>& waiting = [] {}) {
    for (;; waiting()) {
      beat(generation);
      try {
        return store_->get(key, kSlice);
      } catch (const TimeoutError&) {
      }
    }
  }

  void beat(int64_t generation) {
    if (generation != told_generation_) told_.clear();
    told_generation_ = generation;
    const Clock::time_point asked = Clock::now();
    const comm::HostNews news = store_->beat_of_host(options_.node, answer_);
    note_answer(asked);
    talk_->slowest_answer = std::max(answer_, news.slowest_answer).count();
    talk_->longest_silence = news.longest_silence.count();
    talk_->answered = Clock::now();
    for (const comm::LifeSign& rank : news.frozen)
      if (told_.insert(rank.rank).second) talk_->events.put(frozen_event(rank, generation, options_.rank_silence));
  }

  // Says how far away node 0 is: the longest answer of late. A silence was the link's, or node 0's.
  void note_answer(Clock::time_point asked) {
    const Clock::time_point now = Clock::now();
    const Clock::duration silent = now - std::exchange(heard_, now);
    if (options_.node != 0 && silent >= kWorthTelling) {
      base::log_warning("bonfire launch: node 0 ({}) answers again; it was silent for {:.1f} s (lost after {:g} s)",
                        options_.address, seconds(silent), seconds(options_.silence));
      return;
    }
    answer_ = std::max(std::chrono::ceil<milliseconds>(now - asked), answer_ - answer_ / 8);
  }

  // Node 0, which takes the store with it, leaves after all that still live.
  void leave(const Event& last) {
    if (options_.node != 0) {
      try {
        store_->set(fmt::format("left/{}", options_.node), "");
      } catch (const Error&) {
        // Node 0 may have gone once it had read this, and its answer with it: the verdict is known already.
      }
    }
    for (int node = 1; options_.node == 0 && node < options_.nodes; ++node) {
      while (!all_there(*store_, {fmt::format("left/{}", node)}, 1s)) {
        const std::map<int, comm::HostSign> hosts = talk_->server->hosts();
        const auto host = hosts.find(node);
        if (host == hosts.end() || Clock::now() - host->second.heard > kUntilLeft) break;  // never came, or is gone
      }
    }
    talk_->events.put(last);
    std::lock_guard lock(talk_->mutex);
    talk_->over = true;
    talk_->told.notify_all();
  }

  std::shared_ptr<Talk> talk_;
  NodeOptions options_;
  std::shared_ptr<comm::Store> store_;
  milliseconds answer_{0};  // that the store takes, of late
  Clock::time_point heard_ = Clock::now();
  int64_t told_generation_ = 0;
  std::set<int> told_;  // frozen ranks that the loop knows of
};

// Node 0's further part: makes the plan, notices the end of a generation, and decides what comes next.
class Chief {
 public:
  explicit Chief(std::shared_ptr<Talk> talk) : talk_(std::move(talk)), options_(talk_->options) {}

  void run() {
    store_ = talk_->connect("chief");
    store_->set("settings", json{{"node_timeout", options_.silence.count()},
                                 {"rank_timeout", options_.rank_silence.count()},
                                 {"max_restarts", options_.max_restarts}}
                                .dump());
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
      // A node that was lost meanwhile is news, unless it is the verdict itself.
      const std::string why = lost_ < 0 || verdict.at("why") == lost_how_ ? "" : lost_how_;
      store_->set(fmt::format("{}/next", generation), json{{"start", again}, {"why", why}}.dump());
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
    const Clock::time_point now = Clock::now();
    if (now - looked_ > kLateLook) counts_from_ = now;  // this launcher was held up itself
    looked_ = now;
    for (const auto& [node, sign] : talk_->server->hosts()) {
      if (node == 0 || node >= options_.nodes || lost_ >= 0) continue;
      const Clock::duration silent = now - std::max(sign.heard, counts_from_);
      tell_of_silence(node, silent);
      const bool ended = has_ended(sign, now);
      if (!ended && silent < options_.silence) continue;
      lost_ = node;
      lost_how_ = ended ? ended_text(node) : silence_text(node, silent);
      give_verdict(*store_, generation, {{"how", "failed"}, {"why", lost_how_}});
    }
  }

  // A launcher that is killed was heard just before its connection broke off; over a link that is out connections
  // break off too, but after half of the time-out (store_client.cpp). A busy host's launcher speaks late.
  bool has_ended(const comm::HostSign& sign, Clock::time_point now) const {
    const Clock::duration moment = kUnheard + kAnswersOfSign * sign.answer;
    const Clock::duration just_before = std::max<Clock::duration>(moment, options_.silence / 4);
    return sign.ended && *sign.ended - sign.heard < just_before && now - std::max(*sign.ended, sign.heard) > moment;
  }

  std::string named(int node) const { return fmt::format("node {} ({})", node, hosts_[static_cast<size_t>(node)]); }

  std::string ended_text(int node) const {
    return fmt::format("{} is lost: its launcher has ended without a word (was it killed?)", named(node));
  }

  std::string silence_text(int node, Clock::duration silent) const {
    const std::string& host = hosts_[static_cast<size_t>(node)];
    return fmt::format(
        "{} is lost: its launcher has said nothing for {:.1f} s; it is stopped, or the hosts {} (node 0) and {} (node "
        "{}) have lost each other",
        named(node), seconds(silent), hosts_[0], host, node);
  }

  // When it begins to be long, and when it is over.
  void tell_of_silence(int node, Clock::duration silent) {
    Clock::duration& told = told_[node];
    if (silent >= kWorthTelling && told == Clock::duration{})
      base::log_warning("bonfire launch: {} has been silent for {:.1f} s; it counts as lost after {:g} s", named(node),
                        seconds(silent), seconds(options_.silence));
    if (silent < kWorthTelling && told != Clock::duration{})
      base::log_warning("bonfire launch: {} is heard again; it was silent for {:.1f} s", named(node), seconds(told));
    told = silent < kWorthTelling ? Clock::duration{} : silent;
  }

  std::shared_ptr<Talk> talk_;
  const NodeOptions& options_;
  std::shared_ptr<comm::Store> store_;
  std::vector<std::string> hosts_;       // [nodes]
  std::map<int, Clock::duration> told_;  // by node: its silence, while that is long
  Clock::time_point looked_{}, counts_from_{};
  int lost_ = -1;
  std::string lost_how_;
};

class ManyHosts final : public Nodes {
 public:
  explicit ManyHosts(const NodeOptions& options) : talk_(std::make_shared<Talk>()) {
    talk_->options = options;
    talk_->server = serve(options);
    if (options.node == 0) in_a_thread<Chief>();
    in_a_thread<Messages>();
    in_a_thread<Node>();
  }

  int port() const override { return talk_->options.port; }
  int descriptor() const override { return talk_->events.descriptor(); }
  std::optional<Event> event() override { return talk_->events.take(); }
  milliseconds news_delay() const override { return kNews + kAnswersOfNews * milliseconds(talk_->slowest_answer); }
  milliseconds silence() const override {
    const Clock::duration mine = Clock::now() - talk_->answered.load();
    return std::max(milliseconds(talk_->longest_silence), std::chrono::duration_cast<milliseconds>(mine));
  }
  void ranks_done() override {
    change([](Talk::News& news) { news.done = true; });
  }
  void rank_failed(const std::string& reason) override { say("failed", reason); }
  void asked_to_stop() override {
    say("stopped", fmt::format("node {} ({}) was asked to stop", talk_->options.node, comm::host_name()));
  }
  void ranks_gone() override {
    change([](Talk::News& news) { news.gone = true; });
  }

 private:
  void say(const char* how, const std::string& why) {
    change([&](Talk::News& news) {
      if (news.verdict.is_null()) news.verdict = {{"how", how}, {"why", why}};
    });
  }
  template <class Change>
  void change(const Change& how) {
    std::lock_guard lock(talk_->mutex);
    how(talk_->news);
    talk_->told.notify_all();
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
