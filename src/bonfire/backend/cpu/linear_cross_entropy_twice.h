#pragma once
// A linear layer with its cross-entropy, forward and backward, where products are cheap beside memory: logits are made
// twice and never leave the cache. Private to backend/cpu/linear_cross_entropy.cpp.
//
// The classes are cut into blocks. First, each block's logits are made for some rows at a time and only their largest,
// and their sum of exponentials, are kept for each row. With these the softmax is known; so the second time a block's
// logits become their gradient where they stand, which is multiplied by the block of the weight (a part of dx) and by x
// (the block of dweight). A block is packed once each time for all rows. Blocks form a fixed number of parts, each with
// a sum of dx of its own, that threads take in turn: the order of additions does not depend on the thread count.

#include <algorithm>
#include <cmath>
#include <utility>

#include "bonfire/backend/cpu/linear_cross_entropy.h"
#include "bonfire/backend/cpu/packed_product.h"
#include "bonfire/backend/cpu/threads.h"
#include "bonfire/base/vector_math.h"

namespace bonfire::cpu {

inline namespace BONFIRE_COMPILED_SET {

template <class T>
class LogitsTwice {
 public:
  using Acc = Compute<T>;

  explicit LogitsTwice(const LinearLoss<T>& loss)
      : loss_(loss),
        block_rows_(std::clamp<int64_t>(loss.rows, 1, kRows)),
        block_classes_(std::min(kClasses, loss.classes)),
        row_blocks_((loss.rows + block_rows_ - 1) / block_rows_),
        class_blocks_((loss.classes + block_classes_ - 1) / block_classes_),
        parts_(std::clamp<int64_t>(kPartBytes / std::max<int64_t>(1, loss.rows * loss.depth), 1, kMostParts)),
        slots_(cpu_threads()) {
    parts_ = std::min(parts_, class_blocks_);
  }

  size_t workspace_bytes() const { return Memory(*this, nullptr).bytes + static_cast<size_t>(slots_) * slot_bytes(); }

  void operator()(const Run& run) const {
    Memory memory(*this, static_cast<std::byte*>(run.workspace));
    const int64_t count = loss_.count_targets(run);
    const Acc given = loss_.given(run, count);
    pack_x(run, memory);
    for_each_task(run.threads, slots_, class_blocks_, [&](int64_t slot, int64_t block) {
      summarize(run, memory, Slot(*this, memory.slots + static_cast<size_t>(slot) * slot_bytes()), block);
    });
    run.threads->parallel_for(loss_.rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) merge(run, memory, row, given);
    });
    for_each_task(run.threads, slots_, parts_, [&](int64_t slot, int64_t part) {
      differentiate(run, memory, Slot(*this, memory.slots + static_cast<size_t>(slot) * slot_bytes()), part, given);
    });
    run.threads->parallel_for(loss_.rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) sum_parts(memory, row, run.output<T>(1) + row * loss_.depth);
    });
    loss_.finish(run, memory.losses, count);
  }

 private:
  static constexpr int64_t kRows = 256, kClasses = 256;  // of a block
  static constexpr int64_t kPartBytes = int64_t{16} << 20, kMostParts = 16;

  // x [rows, K] · weightᵀ [K, classes], gradient [rows, classes] · weight, gradientᵀ [classes, rows] · x [rows, K]
  PackedProduct<T> logits_of(int64_t classes) const { return {classes, loss_.depth}; }
  PackedProduct<T> dx_of(int64_t classes) const { return {loss_.depth, classes}; }
  PackedProduct<T> dweight_of(int64_t rows) const { return {loss_.depth, rows}; }

  int64_t rows_of(int64_t block) const { return std::min(block_rows_, loss_.rows - block * block_rows_); }
  int64_t classes_of(int64_t block) const { return std::min(block_classes_, loss_.classes - block * block_classes_); }
  int64_t dx_stride() const { return dx_of(block_classes_).stride(); }

  static std::byte* take(std::byte*& next, size_t bytes) { return std::exchange(next, next + (bytes + 63) / 64 * 64); }
  template <class Number>
  static Number* take_numbers(std::byte*& next, int64_t count) {
    return reinterpret_cast<Number*>(take(next, static_cast<size_t>(count) * sizeof(Number)));
  }

  // What all threads share.
  struct Memory {
    size_t x_rows_bytes, x_depth_bytes;  // of a block of rows
    std::byte *x_rows, *x_depth;         // x as the left operand of logits, and as the right one of dweight
    Acc *largest, *sums, *totals;        // [class blocks, N]: of logits, their exponentials, their distances to it
    Acc *at_target, *shift, *factor, *losses;  // [N]
    Acc* dx;                                   // [parts, N, stride]
    std::byte* slots;
    size_t bytes;

    Memory(const LogitsTwice& op, std::byte* base)
        : x_rows_bytes(op.logits_of(op.block_classes_).a_bytes(op.block_rows_)),
          x_depth_bytes(op.dweight_of(op.block_rows_).b_bytes()) {
      std::byte* next = base;
      const int64_t rows = op.loss_.rows, cells = rows * op.class_blocks_;
      x_rows = take(next, static_cast<size_t>(op.row_blocks_) * x_rows_bytes);
      x_depth = take(next, static_cast<size_t>(op.row_blocks_) * x_depth_bytes);
      largest = take_numbers<Acc>(next, cells);
      sums = take_numbers<Acc>(next, cells);
      totals = take_numbers<Acc>(next, op.loss_.smoothing != 0 ? cells : 0);
      at_target = take_numbers<Acc>(next, rows);
      shift = take_numbers<Acc>(next, rows);
      factor = take_numbers<Acc>(next, rows);
      losses = take_numbers<Acc>(next, rows);
      dx = take_numbers<Acc>(next, op.parts_ * rows * op.dx_stride());
      slots = next;
      bytes = static_cast<size_t>(next - base);
    }
  };

  // What a thread has for itself, for a block of rows and classes.
  struct Slot {
    std::byte *weight_classes, *weight_depth;     // the weight as the right operand of logits, and of dx
    std::byte *gradient_rows, *gradient_classes;  // the gradient as the left operand of dx, and of dweight
    Acc* logits;                                  // [rows, logits stride]
    T* gradient;                                  // [rows, classes]
    Acc *dweight, *bias, *dbias;                  // [classes, stride], [classes], [classes]
    size_t bytes;

    Slot(const LogitsTwice& op, std::byte* base) {
      std::byte* next = base;
      const int64_t rows = op.block_rows_, classes = op.block_classes_;
      const PackedProduct<T> logits_product = op.logits_of(classes), dx = op.dx_of(classes);
      weight_classes = take(next, logits_product.b_bytes());
      weight_depth = take(next, dx.b_bytes());
      gradient_rows = take(next, dx.a_bytes(rows));
      gradient_classes = take(next, op.dweight_of(rows).a_bytes(classes));
      logits = take_numbers<Acc>(next, rows * logits_product.stride());
      gradient = take_numbers<T>(next, rows * classes);
      dweight = take_numbers<Acc>(next, classes * op.dx_stride());
      bias = take_numbers<Acc>(next, classes);
      dbias = take_numbers<Acc>(next, classes);
      bytes = static_cast<size_t>(next - base);
    }
  };
  size_t slot_bytes() const { return Slot(*this, nullptr).bytes; }

  void pack_x(const Run& run, const Memory& memory) const {
    for_each_task(run.threads, slots_, row_blocks_, [&](int64_t, int64_t block) {
      const int64_t rows = rows_of(block), depth = loss_.depth;
      const T* x = run.input<T>(0) + block * block_rows_ * depth;
      logits_of(block_classes_)
          .pack_a(x, Axis{{rows, depth}}, Axis{{depth, 1}},
                  memory.x_rows + static_cast<size_t>(block) * memory.x_rows_bytes);
      dweight_of(rows).pack_b(x, Axis{{depth, 1}}, Axis{{rows, depth}},
                              memory.x_depth + static_cast<size_t>(block) * memory.x_depth_bytes);
    });
  }

  void pack_weight(const Run& run, const Slot& slot, int64_t block) const {
    const int64_t first = block * block_classes_, classes = classes_of(block), depth = loss_.depth;
    logits_of(classes).pack_b(run.input<T>(1) + first * depth, Axis{{classes, depth}}, Axis{{depth, 1}},
                              slot.weight_classes);
    if (loss_.has_bias)
      dispatch(loss_.bias_type, [&](auto tag) {
        const auto* bias = static_cast<const typename decltype(tag)::type*>(loss_.bias(run));
        for (int64_t i = 0; i < classes; ++i) slot.bias[i] = static_cast<Acc>(bias[first + i]);
      });
  }

  // Calls body(row, its logits) for each row of a block that counts.
  template <class Body>
  void each_row(const Run& run, const Memory& memory, const Slot& slot, int64_t row_block, int64_t classes,
                const Body& body) const {
    const PackedProduct<T> product = logits_of(classes);
    product.multiply(rows_of(row_block), memory.x_rows + static_cast<size_t>(row_block) * memory.x_rows_bytes,
                     slot.weight_classes, slot.logits, product.stride());
    for (int64_t r = 0; r < rows_of(row_block); ++r) {
      Acc* logits = slot.logits + r * product.stride();
      if (loss_.has_bias && loss_.target(run)[row_block * block_rows_ + r] != loss_.ignore_index) {
#pragma GCC ivdep
        for (int64_t i = 0; i < classes; ++i) logits[i] += slot.bias[i];
      }
      body(row_block * block_rows_ + r, logits);
    }
  }

  // Keeps of a block of logits what the softmax needs.
  void summarize(const Run& run, const Memory& memory, const Slot& slot, int64_t block) const {
    const int64_t first = block * block_classes_, classes = classes_of(block);
    pack_weight(run, slot, block);
    for (int64_t row_block = 0; row_block < row_blocks_; ++row_block)
      each_row(run, memory, slot, row_block, classes, [&](int64_t row, const Acc* logits) {
        const int64_t target = loss_.target(run)[row], at = block * loss_.rows + row;
        if (target == loss_.ignore_index) return;
        const Acc largest = summarize_row(logits, classes, memory.sums[at]);
        memory.largest[at] = largest;
        if (loss_.smoothing != 0)
          memory.totals[at] = row_sum<Acc>(classes, [&](int64_t i) { return logits[i] - largest; });
        if (target >= first && target < first + classes) memory.at_target[row] = logits[target - first];
      });
  }

  // What the blocks kept of a row becomes its loss, and what its gradient needs.
  void merge(const Run& run, const Memory& memory, int64_t row, Acc given) const {
    memory.losses[row] = 0;
    if (loss_.target(run)[row] == loss_.ignore_index) return;
    auto largest_of = [&](int64_t block) { return memory.largest[block * loss_.rows + row]; };
    const Acc largest = row_max<Acc>(class_blocks_, largest_of);
    Acc sum = 0, total = 0;
    for (int64_t block = 0; block < class_blocks_; ++block) {
      const int64_t at = block * loss_.rows + row;
      sum += memory.sums[at] * std::exp(largest_of(block) - largest);
      if (loss_.smoothing != 0)
        total += memory.totals[at] + static_cast<Acc>(classes_of(block)) * (largest_of(block) - largest);
    }
    // Differences to the largest come first: they are exact where the loss is small.
    const Acc expected = (1 - loss_.smoothing) * (memory.at_target[row] - largest) +
                         loss_.smoothing / static_cast<Acc>(loss_.classes) * total;
    memory.losses[row] = std::log(sum) - expected;
    memory.shift[row] = largest;
    memory.factor[row] = given / sum;
  }

  // Blocks of a part: their rows of dweight and dbias, and the part's sum of dx.
  void differentiate(const Run& run, const Memory& memory, const Slot& slot, int64_t part, Acc given) const {
    const int64_t begin = class_blocks_ * part / parts_, end = class_blocks_ * (part + 1) / parts_;
    const int64_t depth = loss_.depth;
    Acc* dx_sums = memory.dx + part * loss_.rows * dx_stride();
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * block_classes_, classes = classes_of(block);
      const PackedProduct<T> dx = dx_of(classes);
      pack_weight(run, slot, block);
      dx.pack_b(run.input<T>(1) + first * depth, Axis{{depth, 1}}, Axis{{classes, depth}}, slot.weight_depth);
      std::fill_n(slot.dbias, classes, Acc(0));
      std::fill_n(slot.dweight, classes * dx_stride(), Acc(0));
      for (int64_t row_block = 0; row_block < row_blocks_; ++row_block) {
        const int64_t rows = rows_of(row_block);
        each_row(run, memory, slot, row_block, classes, [&](int64_t row, const Acc* logits) {
          differentiate_row(run, memory, row, {first, classes}, logits, given,
                            slot.gradient + (row - row_block * block_rows_) * classes, slot.dbias);
        });
        dx.pack_a(slot.gradient, Axis{{rows, classes}}, Axis{{classes, 1}}, slot.gradient_rows);
        dx.multiply(rows, slot.gradient_rows, slot.weight_depth, dx_sums + row_block * block_rows_ * dx_stride(),
                    dx_stride(), block > begin);
        const PackedProduct<T> dweight = dweight_of(rows);
        dweight.pack_a(slot.gradient, Axis{{classes, 1}}, Axis{{rows, classes}}, slot.gradient_classes);
        dweight.multiply(classes, slot.gradient_classes,
                         memory.x_depth + static_cast<size_t>(row_block) * memory.x_depth_bytes, slot.dweight,
                         dx_stride(), row_block > 0);
      }
      for (int64_t i = 0; i < classes; ++i)
        std::copy_n(slot.dweight + i * dx_stride(), depth, run.output<Acc>(2) + (first + i) * depth);
      if (loss_.has_bias) std::copy_n(slot.dbias, classes, run.output<Acc>(3) + first);
    }
  }

  struct Classes {
    int64_t first, count;
  };

  // given (softmax − (1 − s) onehot − s / V)
  void differentiate_row(const Run& run, const Memory& memory, int64_t row, Classes classes, const Acc* logits,
                         Acc given, T* gradient, Acc* dbias) const {
    const int64_t target = loss_.target(run)[row];
    if (target == loss_.ignore_index) {
      std::fill_n(gradient, classes.count, T(0));
      return;
    }
    const Acc shift = memory.shift[row], factor = memory.factor[row];
    const Acc spread = given * loss_.smoothing / static_cast<Acc>(loss_.classes);
#pragma GCC ivdep
    for (int64_t i = 0; i < classes.count; ++i)
      gradient[i] = static_cast<T>(base::exponential(logits[i] - shift) * factor - spread);
    if (target >= classes.first && target < classes.first + classes.count) {
      const Acc share = base::exponential(logits[target - classes.first] - shift) * factor;
      gradient[target - classes.first] = static_cast<T>(share - spread - given * (1 - loss_.smoothing));
    }
    if (!loss_.has_bias) return;
#pragma GCC ivdep
    for (int64_t i = 0; i < classes.count; ++i) dbias[i] += static_cast<Acc>(gradient[i]);
  }

  void sum_parts(const Memory& memory, int64_t row, T* dx) const {
    Acc* sums = memory.dx + row * dx_stride();
    for (int64_t part = 1; part < parts_; ++part) {
      const Acc* other = sums + part * loss_.rows * dx_stride();
      for (int64_t i = 0; i < loss_.depth; ++i) sums[i] += other[i];
    }
    for (int64_t i = 0; i < loss_.depth; ++i) dx[i] = static_cast<T>(sums[i]);
  }

  LinearLoss<T> loss_;
  int64_t block_rows_, block_classes_, row_blocks_, class_blocks_, parts_;
  int64_t slots_;
};

}  // namespace BONFIRE_COMPILED_SET

}  // namespace bonfire::cpu
