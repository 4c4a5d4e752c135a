#include "bonfire/train/trainer/trainer_state.h"

namespace bonfire::train {

void Trainer::State::note_samples(const Taken& taken) {
  ledger.add({.step = step,
              .epoch = taken.begin.epoch,
              .begin = taken.begin.samples,
              .samples = taken.share.all,
              .of = train->samples(),
              .seed = config.seed,
              .world = replicas_of_model(),
              .drop_last = config.drop_last});
  if (sample_trace) sample_trace->add(step, taken.begin.epoch, taken.numbers);
}

void Trainer::State::finish_ledger(RunEnds& end) const {
  LedgerFindings found = check_ledger(ledger);
  end.samples = found.summary;
  for (const std::string& fault : found.faults) note("samples: " + fault);
}

}  // namespace bonfire::train
