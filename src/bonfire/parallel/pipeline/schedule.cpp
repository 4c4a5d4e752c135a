#include "bonfire/parallel/pipeline/schedule.h"

#include <algorithm>
#include <array>
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

// In rounds of as many micro-batches as there are ranks, each round through all chunks.
std::vector<Step> order_of_interleaved(const ScheduleOptions& o, int rank) {
  const int all = o.micro_batches * o.chunks, round = o.stages * o.chunks;
  auto step = [&](Work work, int number) {
    const int chunk = number % round / o.stages;
    return Step{work, number / round * o.stages + number % o.stages,
                work == Work::forward ? chunk : o.chunks - 1 - chunk};
  };
  const int ahead = std::min(all, (o.stages - rank - 1) * 2 + (o.chunks - 1) * o.stages);
  std::vector<Step> steps;
  for (int i = 0; i < ahead; ++i) steps.push_back(step(Work::forward, i));
  for (int i = 0; i < all; ++i) {
    if (ahead + i < all) steps.push_back(step(Work::forward, ahead + i));
    steps.push_back(step(Work::backward, i));
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

// Puts messages and slots to the programs of one rank.
class Rows {
 public:
  Rows(const ScheduleOptions& options, int rank) : options_(options), rank_(rank), steps_(order_of(options, rank)) {
    has_weights_ = std::any_of(steps_.begin(), steps_.end(), [](const Step& s) { return s.work == Work::weights; });
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

  int slots() const { return left_.count(); }
  int activations() const { return activations_.count(); }
  int gradients() const { return gradients_.count(); }

 private:
  using Key = std::pair<int, int>;  // micro-batch, chunk

  int stage_of(const Step& step) const { return step.chunk * options_.stages + rank_; }

  void receive_for(const Step& step) {
    const Phase phase = step.work == Work::forward ? Phase::forward : Phase::backward;
    if (step.work == Work::weights) return;
    const int stage = stage_of(step);
    int slot = -1;
    for (const Edge& edge : options_.edges) {
      const int to = phase == Phase::forward ? edge.to : edge.from,
                from = phase == Phase::forward ? edge.from : edge.to;
      if (to != stage) continue;
      if (slot < 0) {
        slot = (phase == Phase::forward ? activations_ : gradients_).take();
        (phase == Phase::forward ? activation_of_ : gradient_of_)[{step.micro_batch, step.chunk}] = slot;
      }
      items_.push_back({.work = Work::receive,
                        .micro_batch = step.micro_batch,
                        .chunk = step.chunk,
                        .phase = phase,
                        .peer = from % options_.stages,
                        .slot = slot});
    }
  }

  void compute(const Step& step) {
    const Key key{step.micro_batch, step.chunk};
    if (step.work == Work::forward) left_of_[key] = left_.take();
    items_.push_back(
        {.work = step.work, .micro_batch = step.micro_batch, .chunk = step.chunk, .slot = left_of_.at(key)});
    if (step.work != Work::weights) send_after(step);
    if (step.work != (has_weights_ ? Work::weights : Work::backward)) return;
    left_.give_back(left_of_.at(key));
    if (auto found = activation_of_.find(key); found != activation_of_.end()) activations_.give_back(found->second);
    if (auto found = gradient_of_.find(key); found != gradient_of_.end()) gradients_.give_back(found->second);
  }

  void send_after(const Step& step) {
    const bool forward = step.work == Work::forward;
    for (const Edge& edge : options_.edges)
      if ((forward ? edge.from : edge.to) == stage_of(step))
        items_.push_back({.work = Work::send,
                          .micro_batch = step.micro_batch,
                          .chunk = step.chunk,
                          .phase = forward ? Phase::forward : Phase::backward,
                          .peer = (forward ? edge.to : edge.from) % options_.stages});
  }

  const ScheduleOptions& options_;
  int rank_;
  std::vector<Step> steps_;
  bool has_weights_ = false;
  std::vector<Item> items_;
  FreeSlots left_, activations_, gradients_;
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
  if (o.kind == ScheduleKind::interleaved && o.micro_batches % o.stages != 0)
    throw_error<ConfigError>(
        "[pipeline] schedule interleaved has micro-batches in rounds of one for each of {} ranks, and {} were asked "
        "for; use a multiple of {}",
        o.stages, o.micro_batches, o.stages);
  for (const Edge& edge : o.edges)
    BONFIRE_CHECK(0 <= edge.from && edge.from < edge.to && edge.to < o.stages * o.chunks);
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
  switch (item.work) {
    case Work::receive:
      return fmt::format("RECEIVE {} of {} from {} in slot {}", what, item.micro_batch, item.peer, item.slot);
    case Work::send: return fmt::format("SEND {} of {} to {}", what, item.micro_batch, item.peer);
    case Work::forward: return fmt::format("F {} in slot {}", item.micro_batch, item.slot);
    case Work::backward: return fmt::format("B {} of slot {}", item.micro_batch, item.slot);
    case Work::weights: return fmt::format("W {} of slot {}", item.micro_batch, item.slot);
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
  for (int rank = 0; rank < options.stages; ++rank) {
    Rows rows(made.options, rank);
    made.ranks.push_back(rows.items());
    made.slots.push_back(rows.slots());
    made.activations.push_back(rows.activations());
    made.gradients.push_back(rows.gradients());
  }
  return made;
}

int slots_of(ScheduleKind kind, int stages, int micro_batches, int stage) {
  switch (kind) {
    case ScheduleKind::gpipe: return micro_batches;
    case ScheduleKind::one_f_one_b: return std::min(micro_batches, stages - stage);
    case ScheduleKind::zero_bubble: return std::min(micro_batches, stages);
    case ScheduleKind::interleaved: break;
  }
  throw_error<ConfigError>("[pipeline] schedule {} has chunks, whose slots are in its table", name_of(kind));
}

}  // namespace bonfire::pipeline
