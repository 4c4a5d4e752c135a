#include "bonfire/base/error.h"
#include "bonfire/runtime/plan_cache.h"
#include "bonfire/runtime/profile.h"
#include "bonfire/train/report/timeline.h"
#include "bonfire/train/trainer/trainer_state.h"

namespace bonfire::train {

// The first steps compile; the next ones are what all others are like.
void Trainer::State::trace_nodes() {
  constexpr int64_t kTraced = 20;  // steps
  if (!timeline) return;
  int64_t done = step - first_step, first = 2 * config.strategy.accumulate_steps;
  if (done == first) {
    traced_plans = runtime::cached_plans();
    for (const auto& plan : traced_plans) runtime::start_profile(*plan);
  }
  if (done == first + kTraced) collect_nodes();
}

void Trainer::State::collect_nodes() {
  for (const auto& plan : traced_plans) {
    for (const runtime::NodeSpan& span : runtime::spans_of(*plan))
      timeline->add(to_string(span.device) + (span.line ? ", " + to_string(*span.line) : ""),
                    span.note->path.empty() ? span.note->node : span.note->path + ": " + span.note->node, span.begin,
                    span.seconds,
                    {{"op", span.note->node},
                     {"module", span.note->path},
                     {"candidate", span.note->candidate},
                     {"result", to_string(span.note->result)}});
    runtime::stop_profile(*plan);
  }
  traced_plans.clear();
}

// All else is saved by then.
void Trainer::State::write_trace(RunEnds& end) const try {
  timeline->write(trace_file);
  end.trace = trace_file;
} catch (const DataError& error) {
  note(fmt::format("there is no trace: {}", error.what()));
}

}  // namespace bonfire::train
