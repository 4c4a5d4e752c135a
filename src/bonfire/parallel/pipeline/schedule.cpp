#include "bonfire/parallel/pipeline/schedule.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>

#include "bonfire/base/error.h"

namespace bonfire::pipeline {
namespace {

constexpr std::array<const char*, 4> kScheduleNames{"gpipe", "1f1b", "zero_bubble", "interleaved"};

// A program of a rank, before messages and slots are known.
struct Step {
  Work work;
  int micro_batch;
  int chunk = 0;
};

std::vector<Step> order_of_gpipe(int micro_batches) {
  std::vector<Step> steps;
  for (Work work : {Work::forward, Work::backward})
    for (int i = 0; i < micro_batches; ++i) steps.push_back({work, i});
  return steps;
}

// `delay`: how many micro-batches later W comes than B; negative: there is no W.
std::vector<Step> order_of_one_f_one_b(int ahead, int micro_batches, int delay) {
  std::vector<Step> steps;
  int forward = 0, weights = 0;
  while (forward < std::min(ahead, micro_batches)) steps.push_back({Work::forward, forward++});
  for (int i = 0; i < micro_batches; ++i) {
    steps.push_back({Work::backward, i});
    if (delay >= 0 && weights + delay <= i) steps.push_back({Work::weights, weights++});
    if (forward < micro_batches) steps.push_back({Work::forward, forward++});
  }
  while (delay >= 0 && weights < micro_batches) steps.push_back({Work::weights, weights++});
  return steps;
}

// In rounds, each through all chunks, of as many micro-batches as there are ranks, or a few more: in a round of fewer
// the first rank would wait for what the last one has yet to begin.
std::vector<Step> order_of_interleaved(const ScheduleOptions& o, int rank) {
  const int rounds = std::max(1, o.micro_batches / o.stages), all = o.micro_batches * o.chunks;
  std::vector<Step> forward, backward;
  int widest = 0;
  for (int round = 0, begin = 0; round < rounds; ++round) {
    const int end = begin + o.micro_batches / rounds + (round < o.micro_batches % rounds ? 1 : 0);
    for (int chunk = 0; chunk < o.chunks; ++chunk)
      for (int i = begin; i < end; ++i) {
        forward.push_back({Work::forward, i, chunk});
        backward.push_back({Work::backward, i, o.chunks - 1 - chunk});
      }
    widest = std::max(widest, end - begin);
    begin = end;
  }
  const int ahead = std::min(all, (o.stages - rank - 1) * 2 + (o.chunks - 1) * widest);
  std::vector<Step> steps(forward.begin(), forward.begin() + ahead);
  for (int i = 0; i < all; ++i) {
    if (const int next = ahead + i; next < all) steps.push_back(forward[static_cast<size_t>(next)]);
    steps.push_back(backward[static_cast<size_t>(i)]);
  }
  return steps;
}

std::vector<Step> order_of(const ScheduleOptions& o, int rank) {
  switch (o.kind) {
    case ScheduleKind::gpipe: return order_of_gpipe(o.micro_batches);
    case ScheduleKind::one_f_one_b: return order_of_one_f_one_b(o.stages - rank, o.micro_batches, -1);
    case ScheduleKind::zero_bubble: return order_of_one_f_one_b(o.stages - rank, o.micro_batches, rank);
    case ScheduleKind::interleaved: return order_of_interleaved(o, rank);
  }
  return {};
}

// The lowest free numbers, as many as were taken at a time.
class FreeSlots {
 public:
  int take() {
    auto free = std::find(taken_.begin(), taken_.end(), false);
    if (free == taken_.end()) free = taken_.insert(taken_.end(), false);
    *free = true;
    return static_cast<int>(free - taken_.begin());
  }
  void give_back(int slot) { taken_[static_cast<size_t>(slot)] = false; }
  int count() const { return static_cast<int>(taken_.size()); }

 private:
  std::vector<bool> taken_;
};

struct Message {
  int micro_batch;
  Phase phase;
  int from, to;  // stages
};
using Messages = std::map<std::pair<int, int>, std::deque<Message>>;  // from rank to rank, as they are sent

Phase phase_after(Work work) { return work == Work::forward ? Phase::forward : Phase::backward; }

// What a stage sends after a program.
std::vector<Message> sent_after(const ScheduleOptions& o, const Step& step, int stage) {
  std::vector<Message> messages;
  if (step.work == Work::weights) return messages;
  const Phase phase = phase_after(step.work);
  for (const Edge& edge : o.edges) {
    const int from = phase == Phase::forward ? edge.from : edge.to, to = phase == Phase::forward ? edge.to : edge.from;
    if (from == stage) messages.push_back({step.micro_batch, phase, from, to});
  }
  return messages;
}

// Puts messages and slots to the programs of one rank.
class Rows {
 public:
  // `incoming`: of all ranks; those to this one are used up.
  Rows(const ScheduleOptions& options, int rank, Messages& incoming)
      : options_(options), rank_(rank), incoming_(incoming), steps_(order_of(options, rank)) {
    has_weights_ = std::any_of(steps_.begin(), steps_.end(), [](const Step& s) { return s.work == Work::weights; });
    for (std::vector<FreeSlots>* slots : {&left_, &activations_, &gradients_})
      slots->resize(static_cast<size_t>(options.chunks));
  }

  std::vector<Item> items() {
    // What the next program reads is received while this one runs.
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (i == 0) receive_for(steps_[0]);
      if (i + 1 < steps_.size()) receive_for(steps_[i + 1]);
      compute(steps_[i]);
    }
    items_.push_back({.work = Work::reduce});
    items_.push_back({.work = Work::update});
    return std::move(items_);
  }

  int slots(int chunk) const { return left_[static_cast<size_t>(chunk)].count(); }
  int activations(int chunk) const { return activations_[static_cast<size_t>(chunk)].count(); }
  int gradients(int chunk) const { return gradients_[static_cast<size_t>(chunk)].count(); }

 private:
  using Key = std::pair<int, int>;  // micro-batch, chunk

  int stage_of(const Step& step) const { return step.chunk * options_.stages + rank_; }

  // And what the same ranks send before it.
  void receive_for(const Step& step) {
    if (step.work == Work::weights) return;
    const Phase phase = phase_after(step.work);
    const int stage = stage_of(step);
    for (const Edge& edge : options_.edges) {
      const int from = phase == Phase::forward ? edge.from : edge.to,
                to = phase == Phase::forward ? edge.to : edge.from;
      if (to != stage) continue;
      std::deque<Message>& line = incoming_[{from % options_.stages, rank_}];
      auto wanted = std::find_if(line.begin(), line.end(), [&](const Message& one) {
        return one.micro_batch == step.micro_batch && one.phase == phase && one.from == from && one.to == to;
      });
      if (wanted == line.end()) continue;  // it came with another one
      for (auto left = wanted - line.begin(); left >= 0; --left) {
        receive(line.front());
        line.pop_front();
      }
    }
  }

  void receive(const Message& message) {
    const int chunk = message.to / options_.stages;
    const bool forward = message.phase == Phase::forward;
    auto [slot, fresh] = (forward ? activation_of_ : gradient_of_).emplace(Key{message.micro_batch, chunk}, 0);
    if (fresh) slot->second = (forward ? activations_ : gradients_)[static_cast<size_t>(chunk)].take();
    items_.push_back({.work = Work::receive,
                      .micro_batch = message.micro_batch,
                      .chunk = chunk,
                      .phase = message.phase,
                      .peer = message.from % options_.stages,
                      .other = message.from,
                      .slot = slot->second});
  }

  void compute(const Step& step) {
    const Key key{step.micro_batch, step.chunk};
    const auto chunk = static_cast<size_t>(step.chunk);
    if (step.work == Work::forward) left_of_[key] = left_[chunk].take();
    items_.push_back(
        {.work = step.work, .micro_batch = step.micro_batch, .chunk = step.chunk, .slot = left_of_.at(key)});
    for (const Message& message : sent_after(options_, step, stage_of(step)))
      items_.push_back({.work = Work::send,
                        .micro_batch = message.micro_batch,
                        .chunk = step.chunk,
                        .phase = message.phase,
                        .peer = message.to % options_.stages,
                        .other = message.to});
    if (step.work != (has_weights_ ? Work::weights : Work::backward)) return;
    left_[chunk].give_back(left_of_.at(key));
    if (auto found = activation_of_.find(key); found != activation_of_.end())
      activations_[chunk].give_back(found->second);
    if (auto found = gradient_of_.find(key); found != gradient_of_.end()) gradients_[chunk].give_back(found->second);
  }

  const ScheduleOptions& options_;
  int rank_;
  Messages& incoming_;
  std::vector<Step> steps_;
  bool has_weights_ = false;
  std::vector<Item> items_;
  std::vector<FreeSlots> left_, activations_, gradients_;  // [chunks]
  std::map<Key, int> left_of_, activation_of_, gradient_of_;
};

void check_schedule_options(const ScheduleOptions& o) {
  auto require = [](const char* what, int found) {
    if (found < 1) throw_error<ConfigError>("[pipeline] {} is {}, expected at least 1", what, found);
  };
  require("the number of stages", o.stages);
  require("micro_batches", o.micro_batches);
  require("chunks", o.chunks);
  if (o.chunks > 1 && o.kind != ScheduleKind::interleaved)
    throw_error<ConfigError>("[pipeline] schedule {} has one chunk on each rank, {} were asked for; use interleaved",
                             name_of(o.kind), o.chunks);
  for (const Edge& edge : o.edges) {
    BONFIRE_CHECK(0 <= edge.from && edge.from < edge.to && edge.to < o.stages * o.chunks);
    if (edge.from % o.stages == edge.to % o.stages)
      throw_error<ConfigError>(
          "[pipeline] stage {} reads what stage {} computes, and rank {} has both: a rank sends nothing to itself; cut "
          "elsewhere, or use fewer chunks",
          edge.to, edge.from, edge.from % o.stages);
  }
}

}  // namespace

const char* name_of(ScheduleKind kind) { return kScheduleNames.at(static_cast<size_t>(kind)); }

ScheduleKind parse_schedule(std::string_view name) {
  const auto* found = std::find(kScheduleNames.begin(), kScheduleNames.end(), name);
  if (found == kScheduleNames.end())
    throw_error<ConfigError>("[pipeline] there is no schedule '{}'; expected gpipe, 1f1b, zero_bubble or interleaved",
                             name);
  return static_cast<ScheduleKind>(found - kScheduleNames.begin());
}

std::string to_string(const Item& item) {
  const char* what = item.phase == Phase::forward ? "activations" : "gradients";
  const std::string of =
      fmt::format("{}{}", item.micro_batch, item.chunk > 0 ? fmt::format(" of chunk {}", item.chunk) : "");
  switch (item.work) {
    case Work::receive: return fmt::format("RECEIVE {} of {} from {} in slot {}", what, of, item.peer, item.slot);
    case Work::send: return fmt::format("SEND {} of {} to {}", what, of, item.peer);
    case Work::forward: return fmt::format("F {} in slot {}", of, item.slot);
    case Work::backward: return fmt::format("B {} of slot {}", of, item.slot);
    case Work::weights: return fmt::format("W {} of slot {}", of, item.slot);
    case Work::reduce: return "REDUCE";
    case Work::update: return "U";
  }
  return "?";
}

Schedule make_schedule(const ScheduleOptions& options) {
  Schedule made{.options = options, .ranks = {}, .slots = {}, .activations = {}, .gradients = {}};
  check_schedule_options(options);
  if (options.edges.empty())
    for (int stage = 1; stage < options.stages * options.chunks; ++stage)
      made.options.edges.push_back({stage - 1, stage});
  Messages messages;
  for (int rank = 0; rank < options.stages; ++rank)
    for (const Step& step : order_of(options, rank))
      for (const Message& one : sent_after(made.options, step, step.chunk * options.stages + rank))
        messages[{rank, one.to % options.stages}].push_back(one);
  const int stages = options.stages * options.chunks;
  for (std::vector<int>* slots : {&made.slots, &made.activations, &made.gradients})
    slots->resize(static_cast<size_t>(stages));
  for (int rank = 0; rank < options.stages; ++rank) {
    Rows rows(made.options, rank, messages);
    made.ranks.push_back(rows.items());
    for (int chunk = 0; chunk < options.chunks; ++chunk) {
      const int number = chunk * options.stages + rank;
      const auto stage = static_cast<size_t>(number);
      made.slots[stage] = rows.slots(chunk);
      made.activations[stage] = rows.activations(chunk);
      made.gradients[stage] = rows.gradients(chunk);
    }
  }
  return made;
}

}  // namespace bonfire::pipeline
