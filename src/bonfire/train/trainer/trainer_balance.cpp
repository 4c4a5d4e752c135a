#include <fmt/ranges.h>

#include <utility>

#include "bonfire/graph/engine.h"
#include "bonfire/kernel/queue.h"
#include "bonfire/train/trainer/trainer_state.h"

namespace bonfire::train {

double Trainer::State::own_seconds() const {
  synchronize();
  return queue_of(place).seconds_computing() + own_time.for_data;
}

void Trainer::State::count_seconds() {
  const double now = own_seconds();
  own_time.seconds += now - std::exchange(own_time.since, now);
}

// Every rank has done the same step here, and the next batch is the first that is cut in another way.
void Trainer::State::balance_shares(int64_t rows) {
  if (!balance) return;
  own_time.rows += rows;
  const Balance::Mark mark = balance->after_step();
  if (mark == Balance::Mark::none) return;
  count_seconds();
  const auto nanoseconds = static_cast<int64_t>(1e9 * own_time.seconds / static_cast<double>(own_time.rows));
  own_time.seconds = 0;
  own_time.rows = 0;
  if (mark == Balance::Mark::begin || !balance->note(numbers_of_ranks(nanoseconds))) return;
  train->set_shares(balance->shares());
  note(fmt::format("balance: from step {} on the ranks train on {} of {} {}, by their speed", step + 1,
                   fmt::join(balance->shares(), ", "), global_batch(), task().unit()));
}

}  // namespace bonfire::train
