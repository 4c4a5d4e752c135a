// A linear layer and the cross-entropy of its result, forward and backward, without holding all logits at once.
//
// Inputs of the op: x [N, K], weight [V, K], bias [V] perhaps, target [N], the gradient given to the loss. Outputs: the
// loss, dx [N, K], dweight [V, K], dbias [V] perhaps; dweight and dbias are of the type that sums have.
//
// Rows are taken in chunks whose exponentials have room in memory; rows and classes of a chunk are cut into blocks,
// whose numbers have room in the cache. First each block's logits are made and turned into their exponentials, which
// are kept as T; of each of its rows the largest logit and the sum of exponentials are noted. With these the softmax is
// known; so a second sweep turns each block's exponentials into the gradient, which is multiplied by the block of the
// weight (a part of dx) and by x (the block of dweight). Blocks of classes form a fixed number of parts, each with a
// sum of dx of its own, that threads take in turn: the order of additions does not depend on the thread count.

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "bonfire/backend/cpu/device/threads.h"
#include "bonfire/backend/cpu/gemm/packed_product.h"
#include "bonfire/backend/cpu/simd/every_instruction_set.h"
#include "bonfire/backend/cpu/simd/floating.h"
#include "bonfire/base/error.h"
#include "bonfire/base/vector_math.h"
#include "bonfire/ops/loss.h"

namespace bonfire::cpu {

namespace {

// What is taken from the logits of a row's block before their exponentials are made: nothing for those of common size,
// whose exponentials are far from the largest and smallest numbers, so that one sweep does; nor where all are −∞.
template <class Acc>
Acc shift_of(Acc largest) {
  constexpr Acc kCommon = 40;
  const bool common = largest > -kCommon && largest < kCommon;
  return common || largest == -std::numeric_limits<Acc>::infinity() ? 0 : largest;
}

// Adds the bias to logits and makes their exponentials, whose sum goes to `sum`. Returns the largest logit.
template <class Acc>
Acc summarize_row(Acc* __restrict logits, const Acc* __restrict bias, int64_t classes, Acc* __restrict exponentials,
                  Acc& sum) {
  Acc sums[kLanes] = {}, most[kLanes];
  std::fill_n(most, kLanes, -std::numeric_limits<Acc>::infinity());
  auto take = [&](int64_t i, int l) {
    const Acc logit = logits[i] + bias[i], exponential = base::quick_exponential(logit);
    logits[i] = logit;
    exponentials[i] = exponential;
    sums[l] += exponential;
    most[l] = logit > most[l] ? logit : most[l];
  };
  int64_t i = 0;
  for (; i + kLanes <= classes; i += kLanes)
    for (int l = 0; l < kLanes; ++l) take(i + l, l);
  for (int l = 0; i < classes; ++i, ++l) take(i, l);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) {
      sums[l] += sums[l + width];
      most[l] = most[l + width] > most[l] ? most[l + width] : most[l];
    }
  const Acc largest = most[0], shift = shift_of(largest);
  sum = sums[0];
  if (shift != 0) {
    for (int64_t j = 0; j < classes; ++j) exponentials[j] = base::quick_exponential(logits[j] - shift);
    sum = row_sum<Acc>(classes, [&](int64_t j) { return exponentials[j]; });
  }
  return largest;
}

template <class T>
struct LinearLoss {
  using Acc = Compute<T>;
  int64_t rows, depth, classes;  // N, K, V
  bool has_bias;
  DType bias_type;
  Acc smoothing;
  int64_t ignore_index;
  bool mean;

  explicit LinearLoss(const GraphNode& node)
      : rows(node.inputs[0].spec().shape[0]),
        depth(node.inputs[0].spec().shape[1]),
        classes(node.inputs[1].spec().shape[0]),
        has_bias(node.attributes.flag("has_bias")),
        bias_type(has_bias ? node.inputs[2].spec().dtype : DType::f32),
        smoothing(static_cast<Acc>(node.attributes.number("label_smoothing"))),
        ignore_index(node.attributes.integer("ignore_index")),
        mean(static_cast<Reduction>(node.attributes.integer("reduction")) == Reduction::mean) {}

  const int64_t* target(const Run& run) const { return run.input<int64_t>(has_bias ? 3 : 2); }
  const void* bias(const Run& run) const { return has_bias ? run.inputs[2] : nullptr; }

  // Rows that count, and what the gradient of each is multiplied by.
  int64_t count_targets(const Run& run) const {
    const int64_t* targets = target(run);
    int64_t count = 0;
    for (int64_t row = 0; row < rows; ++row) {
      if (targets[row] == ignore_index) continue;
      if (targets[row] < 0 || targets[row] >= classes)
        throw_error<DataError>(
            "[cross_entropy] target {} of row {} is not a class: expected 0 to {}, or {} to ignore it", targets[row],
            row, classes - 1, ignore_index);
      ++count;
    }
    return count;
  }
  Acc given(const Run& run, int64_t count) const {
    const Acc whole = *run.input<Acc>(has_bias ? 4 : 3);
    return mean ? whole / static_cast<Acc>(count) : whole;
  }

  // The loss from those of the rows.
  void finish(const Run& run, const Acc* losses, int64_t count) const {
    double total = 0;
    for (int64_t row = 0; row < rows; ++row) total += static_cast<double>(losses[row]);
    if (mean) total /= static_cast<double>(count);
    *run.output<Acc>(0) = static_cast<Acc>(total);
  }
};

template <class T>
class LogitsInBlocks {
 public:
  using Acc = Compute<T>;

  LogitsInBlocks(const LinearLoss<T>& loss, int64_t most_exponentials, F32 f32 = F32::split)
      : loss_(loss),
        f32_(f32),
        block_rows_(std::clamp<int64_t>(loss.rows, 1, kRows)),
        block_classes_(std::min(kClasses, loss.classes)),
        class_blocks_((loss.classes + block_classes_ - 1) / block_classes_),
        slots_(cpu_threads()) {
    const int64_t most_rows = most_exponentials / std::max<int64_t>(1, loss.classes);
    chunk_ = std::min(loss.rows, std::max(block_rows_, most_rows - most_rows % block_rows_));
    const int64_t parts = std::clamp<int64_t>(kPartBytes / std::max<int64_t>(1, chunk_ * loss.depth), 1, kMostParts);
    parts_ = std::min(parts, class_blocks_);
  }

  int64_t chunk() const { return chunk_; }  // rows
  bool is_split() const { return std::is_same_v<T, float> && split_kernel() != nullptr && f32_ == F32::split; }
  size_t workspace_bytes() const { return Memory(*this, nullptr).bytes + static_cast<size_t>(slots_) * slot_bytes(); }

  void operator()(const Run& run) const {
    Memory memory(*this, static_cast<std::byte*>(run.workspace));
    const int64_t count = loss_.count_targets(run);
    const Acc given = loss_.given(run, count);
    do {
      memory.rows = std::min(chunk_, loss_.rows - memory.first);
      run_chunk(run, memory, given);
      memory.first += memory.rows;
    } while (memory.first < loss_.rows);
    loss_.finish(run, memory.losses, count);
  }

 private:
  // Of a block. What is made of one, f32 in parts of bf16, has about 2 MiB: a second-level cache.
  static constexpr int64_t kRows = sizeof(T) == 2 ? 256 : 192, kClasses = sizeof(T) == 2 ? 512 : 256;
  static constexpr int64_t kPartBytes = int64_t{16} << 20, kMostParts = 16;

  // x [rows, K] · weightᵀ [K, classes], gradient [rows, classes] · weight, gradientᵀ [classes, rows] · x [rows, K]
  PackedProduct<T> logits_of(int64_t classes) const { return {classes, loss_.depth, f32_}; }
  PackedProduct<T> dx_of(int64_t classes) const { return {loss_.depth, classes, f32_}; }
  PackedProduct<T> dweight_of(int64_t rows) const { return {loss_.depth, rows, f32_}; }

  int64_t row_blocks(int64_t rows) const { return (rows + block_rows_ - 1) / block_rows_; }
  int64_t classes_of(int64_t block) const { return std::min(block_classes_, loss_.classes - block * block_classes_); }
  int64_t dx_stride() const { return dx_of(block_classes_).stride(); }
  bool sums_in_output() const { return dx_stride() == loss_.depth; }  // of dweight
  int64_t block_size() const { return block_rows_ * block_classes_; }

  static std::byte* take(std::byte*& next, size_t bytes) { return std::exchange(next, next + (bytes + 63) / 64 * 64); }
  template <class Number>
  static Number* take_numbers(std::byte*& next, int64_t count) {
    return reinterpret_cast<Number*>(take(next, static_cast<size_t>(count) * sizeof(Number)));
  }

  // What all threads share, for a chunk of `rows` rows from `first` on; M is the most that a chunk has.
  struct Memory {
    int64_t first = 0, rows = 0;
    size_t x_rows_bytes, x_depth_bytes;  // of a block of rows
    std::byte *x_rows, *x_depth;         // x as the left operand of logits, and as the right one of dweight
    T* exponentials;                     // [class blocks, row blocks, a block's]
    Acc *largest, *sums, *totals;        // [class blocks, M]: of logits, their exponentials, their distances to it
    Acc *at_target, *shift, *factor;     // [M]: the target's logit, the largest, what a softmax is multiplied by
    Acc* dx;                             // [parts, M, stride]
    Acc* losses;                         // [N]
    std::byte* slots;
    size_t bytes;

    Memory(const LogitsInBlocks& op, std::byte* base)
        : x_rows_bytes(op.logits_of(op.block_classes_).a_bytes(op.block_rows_)),
          x_depth_bytes(op.dweight_of(op.block_rows_).b_bytes()) {
      std::byte* next = base;
      const int64_t most = op.chunk_, cells = most * op.class_blocks_, row_blocks = op.row_blocks(most);
      x_rows = take(next, static_cast<size_t>(row_blocks) * x_rows_bytes);
      x_depth = take(next, static_cast<size_t>(row_blocks) * x_depth_bytes);
      exponentials = take_numbers<T>(next, op.class_blocks_ * row_blocks * op.block_size());
      largest = take_numbers<Acc>(next, cells);
      sums = take_numbers<Acc>(next, cells);
      totals = take_numbers<Acc>(next, op.loss_.smoothing != 0 ? cells : 0);
      at_target = take_numbers<Acc>(next, most);
      shift = take_numbers<Acc>(next, most);
      factor = take_numbers<Acc>(next, most);
      dx = take_numbers<Acc>(next, op.parts_ * most * op.dx_stride());
      losses = take_numbers<Acc>(next, op.loss_.rows);
      slots = next;
      bytes = static_cast<size_t>(next - base);
    }
  };

  // What a thread has for itself, for a block of rows and classes.
  struct Slot {
    std::byte *weight_classes, *weight_depth;     // the weight as the right operand of logits, and of dx
    std::byte *gradient_rows, *gradient_classes;  // the gradient as the left operand of dx, and of dweight
    Acc* logits;                                  // [rows, stride]
    T* gradient;                                  // [rows, classes]
    Acc *dweight, *bias, *dbias;                  // [classes, stride] where it is needed, [classes], [classes]
    size_t bytes;

    Slot(const LogitsInBlocks& op, std::byte* base) {
      std::byte* next = base;
      const int64_t rows = op.block_rows_, classes = op.block_classes_;
      const PackedProduct<T> dx = op.dx_of(classes);
      weight_classes = take(next, op.logits_of(classes).b_bytes());
      weight_depth = take(next, dx.b_bytes());
      gradient_rows = take(next, dx.a_bytes(rows));
      gradient_classes = take(next, op.dweight_of(rows).a_bytes(classes));
      logits = take_numbers<Acc>(next, rows * op.logits_of(classes).stride());
      gradient = take_numbers<T>(next, rows * classes);
      dweight = take_numbers<Acc>(next, op.sums_in_output() ? 0 : classes * op.dx_stride());
      bias = take_numbers<Acc>(next, classes);
      dbias = take_numbers<Acc>(next, classes);
      bytes = static_cast<size_t>(next - base);
    }
  };
  size_t slot_bytes() const { return Slot(*this, nullptr).bytes; }

  int64_t rows_of(const Memory& memory, int64_t block) const {
    return std::min(block_rows_, memory.rows - block * block_rows_);
  }
  int64_t target(const Run& run, const Memory& memory, int64_t row) const {
    return loss_.target(run)[memory.first + row];
  }
  T* exponentials_at(const Memory& memory, int64_t row_block, int64_t class_block) const {
    return memory.exponentials + (class_block * row_blocks(chunk_) + row_block) * block_size();
  }

  void run_chunk(const Run& run, const Memory& memory, Acc given) const {
    auto slot_at = [&](int64_t slot) { return Slot(*this, memory.slots + static_cast<size_t>(slot) * slot_bytes()); };
    auto for_rows = [&](const auto& body) {
      run.threads->parallel_for(memory.rows, 16, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) body(row);
      });
    };
    for_each_task(run.threads, slots_, row_blocks(memory.rows),
                  [&](int64_t, int64_t block) { pack_x(run, memory, block); });
    for_each_task(run.threads, slots_, class_blocks_,
                  [&](int64_t slot, int64_t block) { make_exponentials(run, memory, slot_at(slot), block); });
    for_rows([&](int64_t row) { merge(run, memory, row, given); });
    for_each_task(run.threads, slots_, parts_,
                  [&](int64_t slot, int64_t part) { differentiate(run, memory, slot_at(slot), part, given); });
    for_rows([&](int64_t row) { sum_parts(memory, row, run.output<T>(1) + (memory.first + row) * loss_.depth); });
  }

  void pack_x(const Run& run, const Memory& memory, int64_t block) const {
    const int64_t rows = rows_of(memory, block), depth = loss_.depth;
    const T* x = run.input<T>(0) + (memory.first + block * block_rows_) * depth;
    logits_of(block_classes_)
        .pack_a(x, Axis{{rows, depth}}, Axis{{depth, 1}},
                memory.x_rows + static_cast<size_t>(block) * memory.x_rows_bytes);
    dweight_of(rows).pack_b(x, Axis{{depth, 1}}, Axis{{rows, depth}},
                            memory.x_depth + static_cast<size_t>(block) * memory.x_depth_bytes);
  }

  void pack_weight(const Run& run, const Slot& slot, int64_t block) const {
    const int64_t first = block * block_classes_, classes = classes_of(block), depth = loss_.depth;
    logits_of(classes).pack_b(run.input<T>(1) + first * depth, Axis{{classes, depth}}, Axis{{depth, 1}},
                              slot.weight_classes);
    if (!loss_.has_bias) {
      std::fill_n(slot.bias, classes, Acc(0));
      return;
    }
    dispatch(loss_.bias_type, [&](auto tag) {
      const auto* bias = static_cast<const typename decltype(tag)::type*>(loss_.bias(run));
      for (int64_t i = 0; i < classes; ++i) slot.bias[i] = static_cast<Acc>(bias[first + i]);
    });
  }

  // The exponentials of a block of classes, and of them what the softmax needs.
  void make_exponentials(const Run& run, const Memory& memory, const Slot& slot, int64_t block) const {
    const int64_t first = block * block_classes_, classes = classes_of(block);
    const PackedProduct<T> product = logits_of(classes);
    pack_weight(run, slot, block);
    for (int64_t row_block = 0; row_block < row_blocks(memory.rows); ++row_block) {
      Acc* logits = slot.logits;
      T* exponentials = exponentials_at(memory, row_block, block);
      product.multiply(rows_of(memory, row_block), memory.x_rows + static_cast<size_t>(row_block) * memory.x_rows_bytes,
                       slot.weight_classes, logits, product.stride());
      for (int64_t r = 0; r < rows_of(memory, row_block); ++r, logits += product.stride(), exponentials += classes) {
        const int64_t row = row_block * block_rows_ + r, at = block * chunk_ + row, own = target(run, memory, row);
        if (own == loss_.ignore_index) continue;
        Acc made[kClasses];
        const Acc largest = summarize_row(logits, slot.bias, classes, made, memory.sums[at]);
        for (int64_t i = 0; i < classes; ++i) exponentials[i] = static_cast<T>(made[i]);
        memory.largest[at] = largest;
        if (loss_.smoothing != 0)
          memory.totals[at] = row_sum<Acc>(classes, [&](int64_t i) { return logits[i] - largest; });
        if (own >= first && own < first + classes) memory.at_target[row] = logits[own - first];
      }
    }
  }

  // What was noted of a row's blocks becomes its loss, and what its gradient needs.
  void merge(const Run& run, const Memory& memory, int64_t row, Acc given) const {
    Acc& loss = memory.losses[memory.first + row];
    loss = 0;
    if (target(run, memory, row) == loss_.ignore_index) return;
    auto largest_of = [&](int64_t block) { return memory.largest[block * chunk_ + row]; };
    const Acc largest = row_max<Acc>(class_blocks_, largest_of);
    Acc sum = 0, total = 0;
    for (int64_t block = 0; block < class_blocks_; ++block) {
      const int64_t at = block * chunk_ + row;
      if (memory.sums[at] != 0) sum += memory.sums[at] * std::exp(shift_of(largest_of(block)) - largest);
      if (loss_.smoothing != 0)
        total += memory.totals[at] + static_cast<Acc>(classes_of(block)) * (largest_of(block) - largest);
    }
    // Differences to the largest come first: they are exact where the loss is small.
    const Acc expected = (1 - loss_.smoothing) * (memory.at_target[row] - largest) +
                         loss_.smoothing / static_cast<Acc>(loss_.classes) * total;
    loss = std::log(sum) - expected;
    memory.shift[row] = largest;
    memory.factor[row] = given / sum;
  }

  // Blocks of a part: their rows of dweight and dbias, and the part's sum of dx.
  void differentiate(const Run& run, const Memory& memory, const Slot& slot, int64_t part, Acc given) const {
    const int64_t begin = class_blocks_ * part / parts_, end = class_blocks_ * (part + 1) / parts_;
    const int64_t depth = loss_.depth;
    Acc* dx_sums = memory.dx + part * chunk_ * dx_stride();
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * block_classes_, classes = classes_of(block);
      const PackedProduct<T> dx = dx_of(classes);
      dx.pack_b(run.input<T>(1) + first * depth, Axis{{depth, 1}}, Axis{{classes, depth}}, slot.weight_depth);
      std::fill_n(slot.dbias, classes, Acc(0));
      Acc* result = run.output<Acc>(2) + first * depth;
      Acc* dweight_sums = sums_in_output() ? result : slot.dweight;
      if (memory.rows == 0) std::fill_n(dweight_sums, classes * dx_stride(), Acc(0));
      for (int64_t row_block = 0; row_block < row_blocks(memory.rows); ++row_block) {
        const int64_t rows = rows_of(memory, row_block);
        const T* exponentials = exponentials_at(memory, row_block, block);
        for (int64_t r = 0; r < rows; ++r, exponentials += classes)
          differentiate_row(run, memory, row_block * block_rows_ + r, block, exponentials, given,
                            slot.gradient + r * classes, slot.dbias);
        Acc* dx_block = dx_sums + row_block * block_rows_ * dx_stride();
        if (dx.takes_rows(rows)) {
          dx.multiply_rows(rows, slot.gradient, classes, slot.weight_depth, dx_block, dx_stride(), block > begin);
        } else {
          dx.pack_a(slot.gradient, Axis{{rows, classes}}, Axis{{classes, 1}}, slot.gradient_rows);
          dx.multiply(rows, slot.gradient_rows, slot.weight_depth, dx_block, dx_stride(), block > begin);
        }
        const PackedProduct<T> dweight = dweight_of(rows);
        dweight.pack_a(slot.gradient, Axis{{classes, 1}}, Axis{{rows, classes}}, slot.gradient_classes);
        dweight.multiply(classes, slot.gradient_classes,
                         memory.x_depth + static_cast<size_t>(row_block) * memory.x_depth_bytes, dweight_sums,
                         dx_stride(), row_block > 0 || (sums_in_output() && memory.first > 0));
      }
      for (int64_t i = 0; i < classes && !sums_in_output(); ++i)
        give(slot.dweight + i * dx_stride(), depth, memory, result + i * depth);
      if (loss_.has_bias) give(slot.dbias, classes, memory, run.output<Acc>(3) + first);
    }
  }

  // The sums of a chunk go to those of the chunks before it.
  static void give(const Acc* sums, int64_t count, const Memory& memory, Acc* output) {
    if (memory.first == 0) {
      std::copy_n(sums, count, output);
    } else {
      for (int64_t i = 0; i < count; ++i) output[i] += sums[i];
    }
  }

  // given (softmax − (1 − s) onehot − s / V)
  void differentiate_row(const Run& run, const Memory& memory, int64_t row, int64_t block,
                         const T* __restrict exponentials, Acc given, T* __restrict gradient,
                         Acc* __restrict dbias) const {
    const int64_t own = target(run, memory, row), classes = classes_of(block);
    if (own == loss_.ignore_index) {
      std::fill_n(gradient, classes, T(0));
      return;
    }
    const int64_t cell = block * chunk_ + row;
    const Acc shift = shift_of(memory.largest[cell]);
    const Acc factor = memory.sums[cell] == 0 ? 0 : memory.factor[row] * std::exp(shift - memory.shift[row]);
    const Acc spread = given * loss_.smoothing / static_cast<Acc>(loss_.classes);
#pragma GCC ivdep
    for (int64_t i = 0; i < classes; ++i) {
      const Acc value = static_cast<Acc>(exponentials[i]) * factor - spread;
      gradient[i] = static_cast<T>(value);
      dbias[i] += value;
    }
    const int64_t at = own - block * block_classes_;
    if (at < 0 || at >= classes) return;
    // Of the logit, not of its rounded exponential: softmax and onehot may be nearly the same.
    const Acc softmax = base::quick_exponential(memory.at_target[row] - memory.shift[row]) * memory.factor[row];
    const Acc value = softmax - spread - given * (1 - loss_.smoothing);
    dbias[at] += value - (static_cast<Acc>(exponentials[at]) * factor - spread);
    gradient[at] = static_cast<T>(value);
  }

  void sum_parts(const Memory& memory, int64_t row, T* dx) const {
    Acc* sums = memory.dx + row * dx_stride();
    for (int64_t part = 1; part < parts_; ++part) {
      const Acc* other = sums + part * chunk_ * dx_stride();
      for (int64_t i = 0; i < loss_.depth; ++i) sums[i] += other[i];
    }
    for (int64_t i = 0; i < loss_.depth; ++i) dx[i] = static_cast<T>(sums[i]);
  }

  LinearLoss<T> loss_;
  F32 f32_;
  int64_t block_rows_, block_classes_, class_blocks_;
  int64_t chunk_ = 0, parts_ = 0;
  int64_t slots_;
};

// Large chunks pack the weight less often; the exponentials of small ones may stay in a large cache.
constexpr int64_t kLargeChunk = int64_t{64} << 20, kSmallChunk = int64_t{8} << 20;  // exponentials

std::vector<Candidate> candidates(const KernelRequest& request) {
  return for_floating(request.node.inputs[0].spec().dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const LinearLoss<T> loss(request.node);
    std::vector<Candidate> list;
    auto offer = [&](const char* name, const LogitsInBlocks<T>& way) {
      list.push_back(make_candidate(request, name, way));
      list.back().workspace_bytes = way.workspace_bytes();
      if (way.is_split()) list.back().error = kSplitError;
    };
    const LogitsInBlocks<T> large(loss, kLargeChunk), small(loss, kSmallChunk);
    offer("large_chunks", large);
    if (small.chunk() < large.chunk()) offer("small_chunks", small);
    if (std::is_same_v<T, float> && split_kernel() != nullptr)
      offer("large_chunks_whole", LogitsInBlocks<T>(loss, kLargeChunk, F32::whole));
    return list;
  });
}

}  // namespace

BONFIRE_CPU_KERNELS(linear_cross_entropy, {"linear_cross_entropy", candidates})

}  // namespace bonfire::cpu
