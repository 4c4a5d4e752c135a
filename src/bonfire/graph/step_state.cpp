#include "bonfire/graph/step_state.h"

#include <algorithm>
#include <utility>

#include "bonfire/graph/step_context.h"

namespace bonfire {

namespace detail {
void note_read(StepCell& cell) {
  if (StepRecord* record = StepContext::current().place.record) [[unlikely]]
    record->read(cell);
}
void note_write(StepCell& cell) {
  if (StepRecord* record = StepContext::current().place.record) [[unlikely]]
    record->write(cell);
}
}  // namespace detail

StepRecord::Entry& StepRecord::entry_of(detail::StepCell& cell) {
  auto [place, is_new] = places_.try_emplace(&cell, entries_.size());
  if (is_new) entries_.push_back({.cell = base::IntrusivePtr<detail::StepCell>(&cell), .before = cell.value});
  return entries_[place->second];
}

void StepRecord::read(detail::StepCell& cell) {
  Entry& entry = entry_of(cell);
  if (!entry.written) entry.shaped = true;
}

void StepRecord::write(detail::StepCell& cell) { entry_of(cell).written = true; }

void StepRecord::finish() {
  places_ = {};
  for (Entry& entry : entries_) entry.after = entry.cell->value;
}

void StepRecord::undo() const {
  for (const Entry& entry : entries_) entry.cell->value = entry.before;
}

bool StepRecord::holds() const {
  return std::all_of(entries_.begin(), entries_.end(),
                     [](const Entry& entry) { return !entry.shaped || entry.cell->value == entry.before; });
}

void StepRecord::leave() const {
  for (const Entry& entry : entries_)
    if (entry.written) entry.cell->value = entry.after;
}

StepRecording::StepRecording(StepRecord& record)
    : before_(std::exchange(StepContext::current().place.record, &record)) {}
StepRecording::~StepRecording() { StepContext::current().place.record = before_; }

}  // namespace bonfire
