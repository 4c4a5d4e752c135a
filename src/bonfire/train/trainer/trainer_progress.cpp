#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bonfire/comm/environment.h"
#include "bonfire/kernel/queue.h"
#include "bonfire/parallel/all_devices.h"
#include "bonfire/parallel/pipeline/stage_runner.h"
#include "bonfire/parallel/step_communication.h"
#include "bonfire/runtime/plan_cache.h"
#include "bonfire/train/report/number_text.h"
#include "bonfire/train/report/shards_table.h"
#include "bonfire/train/report/timeline.h"
#include "bonfire/train/trainer/trainer_state.h"

namespace bonfire::train {

void Trainer::State::show(Progress::Doing doing, int64_t epoch, int64_t done, int64_t all) const {
  tell(&Reporter::progress, Progress{.doing = doing,
                                     .epoch = epoch + 1,
                                     .step = step,
                                     .done = done,
                                     .all = all,
                                     .seconds_compiling = runtime::cache_statistics().seconds_compiling});
}

void Trainer::State::show_steps(const data::LoaderPosition& at, int64_t epoch) const {
  const int64_t all = train->batches_per_epoch();
  const int64_t done = at.epoch != epoch ? all : (at.samples + global_batch() - 1) / global_batch();
  show(step == first_step ? Progress::Doing::compiling : Progress::Doing::training, epoch, done, all);
}

void Trainer::State::show_saving() const {
  const data::LoaderPosition at = train->position();  // after the last batch of an epoch: where the next one begins
  show(Progress::Doing::saving, at.samples == 0 ? at.epoch - 1 : at.epoch);
}

TimeSpent Trainer::State::time_spent() const {
  Queue& queue = queue_of(place);
  return {.wall = seconds_now(),
          .computing = queue.seconds_computing(),
          .communicating = queue.seconds_communicating(),
          .for_data = train->seconds_waited(),
          .agreeing = agreeing};
}

void Trainer::State::share_time(StepReport& report, const TimeShares& own) {
  constexpr double kUnit = 1e6;
  auto of_ranks = [](double share) { return numbers_of_ranks(static_cast<int64_t>(kUnit * share)); };
  const std::vector<int64_t> data = of_ranks(own.data_wait), communication = of_ranks(own.communication_wait);
  const double all = kUnit * static_cast<double>(data.size());
  for (int64_t share : data) report.data_wait += static_cast<double>(share) / all;
  for (int64_t share : communication) {
    report.communication_wait += static_cast<double>(share) / all;
    if (communication.size() > 1) report.communication_waits.push_back(static_cast<double>(share) / kUnit);
  }
}

void Trainer::State::note_hints() const {
  constexpr int64_t kLargeBatch = 5000;  // samples
  const int64_t batch = global_batch() * config.strategy.accumulate_steps;
  if (batch > kLargeBatch && config.warmup_epochs == 0)
    note(
        fmt::format("an update is of {} {}: with more than {} the first ones at the full rate often go wrong; "
                    "warmup_epochs=5 begins with a small one",
                    grouped(batch), task().unit(), grouped(kLargeBatch)));
  if (config.pin_memory)
    note(place.type == DeviceType::cpu
             ? "pin_memory changes nothing: the model is trained on a CPU, which reads batches where they are"
             : "pin_memory changes nothing yet: batches are copied to the GPU from ordinary memory");
  if (fleet::world_size() > 1) return;
  const std::string hint = fleet::hint_to_use_all(place, devices(), fleet::command_words());
  if (!hint.empty() && comm::read_environment().starter == comm::Starter::nobody) note(hint);
}

void Trainer::State::note_gathers() {
  if (told_gathers || fleet::mesh().size(Axis::tensor) == 1) return;
  std::optional<std::vector<passes::Gathered>> gathered;
  if (stages) gathered = stages->gathered();
  for (const auto& plan : runtime::cached_plans())
    if (!gathered && plan->waits_for_ranks) gathered = passes::gathered_in(*plan->graph);
  if (!gathered) return;
  told_gathers = true;
  if (!gathered->empty())
    note(fmt::format("ops that have no rule for parts, for which ranks along mesh.tensor gather: {}",
                     in_words(*gathered)));
}

void Trainer::State::note_collectives() {
  if (told_collectives || fleet::world_size() == 1) return;
  const fleet::StepCommunication found = fleet::last_communication();
  if (found.merged == 0) return;
  told_collectives = true;
  std::vector<std::string> kinds;
  if (const int64_t reduced = found.merged - found.scatters - found.gathers; reduced > 0)
    kinds.push_back(plural(reduced, "all-reduce"));
  if (found.scatters > 0) kinds.push_back(plural(found.scatters, "reduce-scatter"));
  if (found.gathers > 0) kinds.push_back(plural(found.gathers, "gather"));
  note(fmt::format("{} moves {} in {}, merged from {}", local ? "averaging the ranks" : "a step",
                   byte_text(static_cast<double>(found.bytes)), fmt::join(kinds, ", "), grouped(found.unmerged)));
  std::vector<std::string> tables;
  for (const auto& one : found.embeddings)
    tables.push_back(fmt::format(
        "{} {} ({})", one.path, byte_text(static_cast<double>(one.dense)),
        one.shared ? "a layer shares the table and fills every row"
                   : fmt::format("its rows would be {} from each rank", byte_text(static_cast<double>(one.rows)))));
  if (!tables.empty()) note(fmt::format("gradients of embeddings are reduced dense: {}", fmt::join(tables, ", ")));
}

}  // namespace bonfire::train
