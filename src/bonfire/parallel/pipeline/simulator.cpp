#include "bonfire/parallel/pipeline/simulator.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "bonfire/base/error.h"

namespace bonfire::pipeline {
namespace {

// A rank that has one stage is called by it.
const char* word_for_rank(const ScheduleOptions& options) { return options.chunks > 1 ? "rank" : "stage"; }

bool is_program(Work work) { return work == Work::forward || work == Work::backward || work == Work::weights; }

struct SentMessage {
  int micro_batch, from, to;  // stages
  Phase phase;
  double arrives;

  bool is_same(const SentMessage& other) const {
    return micro_batch == other.micro_batch && from == other.from && to == other.to && phase == other.phase;
  }
};

class Simulator {
 public:
  Simulator(const Schedule& schedule, const std::vector<StageTimes>& times, double message)
      : schedule_(schedule), times_(times), message_(message), ranks_(schedule.ranks.size()) {
    BONFIRE_CHECK(times.size() == schedule.ranks.size());
    result_.ranks.resize(ranks_.size());
    result_.busy.resize(ranks_.size());
    result_.slots.resize(ranks_.size());
    for (const std::vector<Item>& items : schedule.ranks)
      has_weights_ |= std::any_of(items.begin(), items.end(), [](const Item& i) { return i.work == Work::weights; });
  }

  Simulation run() {
    for (bool moves = true; moves;) {
      moves = false;
      for (size_t rank = 0; rank < ranks_.size(); ++rank)
        while (ranks_[rank].position < schedule_.ranks[rank].size() && advance(rank)) moves = true;
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) require_complete(rank);
    require_received();
    double programs = 0, end = 0;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      result_.length = std::max(result_.length, ranks_[rank].clock);
      end = std::max(end, ranks_[rank].programs_end);
      programs += result_.busy[rank];
    }
    if (end > 0) result_.idle = 1 - programs / (end * static_cast<double>(ranks_.size()));
    return std::move(result_);
  }

 private:
  using Key = std::pair<int, int>;  // micro-batch, chunk
  struct Rank {
    size_t position = 0;
    double clock = 0, programs_end = 0;
    std::unordered_map<uint64_t, double> done;               // by number_of a program: when
    std::unordered_set<uint64_t> posted;                     // by number_of a message
    std::map<int, std::deque<SentMessage>> expected;         // by rank: posted, in order, and not yet here
    std::unordered_map<uint64_t, double> arrived;            // by number_of a message: when
    std::map<std::tuple<Phase, int, int>, Key> received_in;  // chunk, slot → whose
    std::map<std::pair<int, int>, Key> left_in;              // chunk, slot → whose
    std::set<Work> ended;
  };

  static uint64_t number_of(const Key& key, Work work) {
    return (static_cast<uint64_t>(key.first) << 32) | (static_cast<uint64_t>(key.second) << 8) |
           static_cast<uint64_t>(work);
  }
  static uint64_t number_of(const Key& key, Phase phase, int from) {
    return (static_cast<uint64_t>(key.first) << 40) | (static_cast<uint64_t>(key.second) << 24) |
           (static_cast<uint64_t>(from) << 8) | static_cast<uint64_t>(phase);
  }

  const Item& at(size_t rank) const { return schedule_.ranks[rank][ranks_[rank].position]; }

  [[noreturn]] void refuse(size_t rank, const std::string& why) const {
    throw_error<ConfigError>("[pipeline] schedule {}: item {} of {} {}, {}: {}", name_of(schedule_.options.kind),
                             ranks_[rank].position, word_for_rank(schedule_.options), rank, to_string(at(rank)), why);
  }

  // False: it must wait.
  bool advance(size_t rank) {
    const Item& item = at(rank);
    Rank& self = ranks_[rank];
    if (is_program(item.work)) {
      if (!compute(rank, item)) return false;
    } else if (item.work == Work::receive) {
      post(rank, item);
    } else if (item.work == Work::send) {
      send(rank, item);
    } else {
      finish(rank, item);
    }
    ++self.position;
    return true;
  }

  void post(size_t rank, const Item& item) {
    Rank& self = ranks_[rank];
    const Key key{item.micro_batch, item.chunk};
    if (!self.posted.insert(number_of(key, item.phase, item.other)).second) refuse(rank, "it is there twice");
    auto [place, fresh] = self.received_in.emplace(std::tuple(item.phase, item.chunk, item.slot), key);
    if (!fresh && place->second != key) refuse(rank, "the slot is still another micro-batch's");
    self.expected[item.peer].push_back({.micro_batch = item.micro_batch,
                                        .from = item.other,
                                        .to = stage_of(rank, item),
                                        .phase = item.phase,
                                        .arrives = 0});
  }

  void send(size_t rank, const Item& item) {
    const Key key{item.micro_batch, item.chunk};
    const auto made =
        ranks_[rank].done.find(number_of(key, item.phase == Phase::forward ? Work::forward : Work::backward));
    if (made == ranks_[rank].done.end()) refuse(rank, "it is not computed yet");
    under_way_[{static_cast<int>(rank), item.peer}].push_back({.micro_batch = item.micro_batch,
                                                               .from = stage_of(rank, item),
                                                               .to = item.other,
                                                               .phase = item.phase,
                                                               .arrives = made->second + message_});
  }

  int stage_of(size_t rank, const Item& item) const {
    return item.chunk * schedule_.options.stages + static_cast<int>(rank);
  }

  // When all that it reads is there; negative: not yet.
  double ready(size_t rank, const Item& item) {
    const Phase phase = item.work == Work::forward ? Phase::forward : Phase::backward;
    const Key key{item.micro_batch, item.chunk};
    double at = 0;
    if (item.work == Work::weights) return at;
    for (const Edge& edge : schedule_.options.edges) {
      const int to = phase == Phase::forward ? edge.to : edge.from,
                from = phase == Phase::forward ? edge.from : edge.to;
      if (to != stage_of(rank, item)) continue;
      if (!ranks_[rank].posted.contains(number_of(key, phase, from))) refuse(rank, "no RECEIVE stands before it");
      take_arrived(rank, from % schedule_.options.stages);
      const auto arrived = ranks_[rank].arrived.find(number_of(key, phase, from));
      if (arrived == ranks_[rank].arrived.end()) return -1;
      at = std::max(at, arrived->second);
    }
    return at;
  }

  // What has come from a rank: in the order in which it was sent, which must be that in which it was expected.
  void take_arrived(size_t rank, int from) {
    std::deque<SentMessage>& sent = under_way_[{from, static_cast<int>(rank)}];
    std::deque<SentMessage>& expected = ranks_[rank].expected[from];
    while (!sent.empty() && !expected.empty()) {
      const SentMessage first = sent.front();
      if (!first.is_same(expected.front()))
        refuse(rank, fmt::format("stage {} sends micro-batch {} first", first.from, first.micro_batch));
      ranks_[rank]
          .arrived[number_of({first.micro_batch, first.to / schedule_.options.stages}, first.phase, first.from)] =
          first.arrives;
      sent.pop_front();
      expected.pop_front();
    }
  }

  bool compute(size_t rank, const Item& item) {
    Rank& self = ranks_[rank];
    const Key key{item.micro_batch, item.chunk};
    if (self.done.contains(number_of(key, item.work))) refuse(rank, "it is there twice");
    const double begin = ready(rank, item);
    if (begin < 0) return false;
    if (item.work == Work::forward) {
      if (!self.left_in.emplace(std::pair(item.chunk, item.slot), key).second)
        refuse(rank, "the slot is still another micro-batch's");
      result_.slots[rank] = std::max(result_.slots[rank], static_cast<int>(self.left_in.size()));
    } else {
      const Work before = item.work == Work::weights ? Work::backward : Work::forward;
      if (!self.done.contains(number_of(key, before))) refuse(rank, "what it reads is not computed yet");
      auto left = self.left_in.find({item.chunk, item.slot});
      if (left == self.left_in.end() || left->second != key) refuse(rank, "the slot is not its own");
    }
    const StageTimes& times = times_[rank];
    const double takes = item.work == Work::forward    ? times.forward
                         : item.work == Work::backward ? times.backward
                                                       : times.weights;
    note(rank, item, std::max(self.clock, begin), takes);
    self.done[number_of(key, item.work)] = self.programs_end = self.clock;
    result_.busy[rank] += takes;
    if (item.work == (has_weights_ ? Work::weights : Work::backward)) give_back(self, key);
    return true;
  }

  void give_back(Rank& self, const Key& key) const {
    std::erase_if(self.left_in, [&](const auto& one) { return one.second == key; });
    std::erase_if(self.received_in, [&](const auto& one) { return one.second == key; });
  }

  void finish(size_t rank, const Item& item) {
    Rank& self = ranks_[rank];
    if (!self.ended.insert(item.work).second) refuse(rank, "it is there twice");
    if (item.work == Work::reduce && self.ended.contains(Work::update)) refuse(rank, "it comes after the update");
    require_programs(rank);
    note(rank, item, self.clock, item.work == Work::reduce ? times_[rank].reduce : times_[rank].update);
  }

  void note(size_t rank, const Item& item, double begin, double takes) {
    ranks_[rank].clock = begin + takes;
    if (takes > 0) result_.ranks[rank].push_back({item, begin, begin + takes});
  }

  void require_programs(size_t rank) const {
    for (int chunk = 0; chunk < schedule_.options.chunks; ++chunk)
      for (int i = 0; i < schedule_.options.micro_batches; ++i)
        for (Work work : {Work::forward, Work::backward, Work::weights})
          if ((work != Work::weights || has_weights_) && !ranks_[rank].done.contains(number_of({i, chunk}, work)))
            refuse(rank, fmt::format("micro-batch {} is not done", i));
  }

  void require_complete(size_t rank) const {
    const Rank& self = ranks_[rank];
    if (self.position < schedule_.ranks[rank].size())
      refuse(rank, "it waits for ever: what it reads is never sent, or only after what this rank sends later");
    if (self.ended.size() != 2)
      throw_error<ConfigError>("[pipeline] schedule {}: {} {} has no REDUCE or no U", name_of(schedule_.options.kind),
                               word_for_rank(schedule_.options), rank);
  }

  void require_received() const {
    for (const auto& [way, left] : under_way_)
      if (!left.empty())
        throw_error<ConfigError>("[pipeline] schedule {}: {} {} sends {} messages to {} that nobody receives",
                                 name_of(schedule_.options.kind), word_for_rank(schedule_.options), way.first,
                                 left.size(), way.second);
  }

  const Schedule& schedule_;
  const std::vector<StageTimes>& times_;
  double message_;
  bool has_weights_ = false;
  std::vector<Rank> ranks_;
  std::map<std::pair<int, int>, std::deque<SentMessage>> under_way_;  // from rank to rank
  Simulation result_;
};

std::string cell_text(const Item& item) {
  const char* letter = item.work == Work::forward ? "F" : item.work == Work::backward ? "B" : "W";
  if (item.chunk >= 26) return fmt::format("{}{}/{}", letter, item.micro_batch, item.chunk);
  return fmt::format("{}{}{}", letter, item.micro_batch, item.chunk > 0 ? std::string(1, char('a' + item.chunk)) : "");
}

}  // namespace

StageTimes equal_times(ScheduleKind kind) {
  const bool apart = kind == ScheduleKind::zero_bubble;
  return {.forward = 1, .backward = apart ? 1.0 : 2.0, .weights = apart ? 1.0 : 0.0};
}

Simulation simulate(const Schedule& schedule, const std::vector<StageTimes>& times, double message) {
  return Simulator(schedule, times, message).run();
}

double expected_idle(const ScheduleOptions& options) {
  const double waiting = options.stages - 1, work = static_cast<double>(options.micro_batches) * options.chunks;
  if (options.kind == ScheduleKind::zero_bubble) return waiting / (3 * work + waiting);
  return waiting / (work + waiting);
}

std::string to_string(const Schedule& schedule) {
  const ScheduleOptions& o = schedule.options;
  const StageTimes times = equal_times(o.kind);
  const Simulation ran = simulate(schedule, std::vector<StageTimes>(schedule.ranks.size(), times));
  size_t wide = 2;
  for (const auto& runs : ran.ranks)
    for (const Simulation::Run& run : runs) wide = std::max(wide, cell_text(run.item).size());
  const bool in_chunks = o.chunks > 1;
  std::string text = fmt::format(
      "{}, {}, {} micro-batches; F takes 1, B {}{}\n\n", name_of(o.kind),
      in_chunks ? fmt::format("{} ranks with {} stages each", o.stages, o.chunks) : fmt::format("{} stages", o.stages),
      o.micro_batches, times.backward, times.weights > 0 ? fmt::format(", W {}", times.weights) : "");
  for (size_t rank = 0; rank < ran.ranks.size(); ++rank) {
    std::vector<std::string> cells(static_cast<size_t>(std::lround(ran.length)), ".");
    for (const Simulation::Run& run : ran.ranks[rank])
      for (auto at = std::lround(run.begin); at < std::lround(run.end); ++at)
        cells[static_cast<size_t>(at)] = cell_text(run.item);
    text += fmt::format("{} {:<3}", word_for_rank(o), rank);
    for (const std::string& cell : cells) text += fmt::format("{:<{}} ", cell, wide);
    while (text.back() == ' ') text.pop_back();
    text += '\n';
  }
  text += fmt::format("\nlength {}, idle {:.1f} %\n", ran.length, 100 * ran.idle);
  for (size_t stage = 0; stage < schedule.slots.size(); ++stage)
    text += fmt::format("stage {}: {} slots, {} of activations and {} of gradients received\n", stage,
                        schedule.slots[stage], schedule.activations[stage], schedule.gradients[stage]);
  return text;
}

std::string items_of(const Schedule& schedule) {
  std::string text;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    text += fmt::format("{} {}\n", word_for_rank(schedule.options), rank);
    for (size_t i = 0; i < schedule.ranks[rank].size(); ++i)
      text += fmt::format("  {:>4}  {}\n", i, to_string(schedule.ranks[rank][i]));
  }
  return text;
}

}  // namespace bonfire::pipeline
