#pragma once
// StepState: a value of the host that shapes what a step traces, beside the step's inputs: whether a gradient is clear,
// train or eval mode, whether gradients are reduced.
//
// compile() traces a step once and submits it many times. What the traced function reads of the host decides what is
// traced, and what it changes there every later submission must change too. So such values live in a StepState: the
// first value that a step reads while compile() traces it becomes part of that step's key, and what the step leaves in
// it each later submission leaves there as well.
//
//   StepState<bool> training{true};
//   if (training) ...   // a step that is compiled knows that it was read
//   training = false;

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "bonfire/base/intrusive_ptr.h"

namespace bonfire {

namespace detail {

struct StepCell : base::RefCounted<StepCell> {
  explicit StepCell(uint64_t first) : value(first) {}
  uint64_t value;
};

// Tell the record of the step that this thread traces for compile(), if it does.
void note_read(StepCell& cell);
void note_write(StepCell& cell);

}  // namespace detail

// What one traced step has read and written.
class StepRecord {
 public:
  void read(detail::StepCell& cell);
  void write(detail::StepCell& cell);  // before it is written
  void finish();                       // the step is traced: what it leaves is known
  void undo() const;                   // the step could not be traced: all is as it was

  bool holds() const;  // whether all that was read has the same value now
  void leave() const;  // writes what the step leaves

 private:
  struct Entry {
    base::IntrusivePtr<detail::StepCell> cell;
    bool shaped = false;   // it was read before it was written
    bool written = false;  // by the step
    uint64_t before = 0, after = 0;
  };
  Entry& entry_of(detail::StepCell& cell);

  std::vector<Entry> entries_;
  std::unordered_map<const detail::StepCell*, size_t> places_;  // in entries_, while the step is traced
};

// While one lives, what this thread reads and writes goes into the record.
class StepRecording {
 public:
  explicit StepRecording(StepRecord& record);
  ~StepRecording();
  StepRecording(const StepRecording&) = delete;
  StepRecording& operator=(const StepRecording&) = delete;

 private:
  StepRecord* before_;
};

template <class T>
class StepState {
 public:
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(uint64_t));

  explicit StepState(T value = {}) : cell_(base::make_intrusive<detail::StepCell>(bits_of(value))) {}
  StepState(const StepState&) = delete;  // two names of one value would be mistaken for two values
  StepState(StepState&&) noexcept = default;
  StepState& operator=(StepState&&) noexcept = default;

  T get() const {
    detail::note_read(*cell_);
    T value;
    std::memcpy(&value, &cell_->value, sizeof value);
    return value;
  }
  operator T() const { return get(); }
  StepState& operator=(T value) {
    set(value);
    return *this;
  }
  void set(T value) {
    detail::note_write(*cell_);
    cell_->value = bits_of(value);
  }

 private:
  static uint64_t bits_of(T value) {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
  }

  base::IntrusivePtr<detail::StepCell> cell_;
};

}  // namespace bonfire
