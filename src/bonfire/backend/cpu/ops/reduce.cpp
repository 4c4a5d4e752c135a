// CPU kernels of sum, sum_as_f32, mean, max and min.
//
// Neighbouring axes that are both reduced or both kept are merged, which leaves two shapes of work. When the innermost
// axis is reduced, runs of memory are folded to one number each. When it is kept, rows of memory are folded into each
// other. Either way the fold goes through an array of independent lanes, which the compiler turns into vectors, and
// every kBlock steps the lanes are emptied into wider totals, so that no sum of floats grows long. Short runs under
// another reduced axis ([4096, 512, 2, 2] over all but the channels) are folded as rows first, then within the row. The
// reduction is cut into pieces by its shape alone, and the pieces are put together in order: the same bits for any
// number of threads.

#include <algorithm>
#include <limits>
#include <type_traits>

#include "bonfire/backend/cpu/simd/every_instruction_set.h"
#include "bonfire/kernel/kernel.h"

namespace bonfire::cpu {

namespace {

constexpr int64_t kLanes = 32;             // of a run that is folded to one number
constexpr int64_t kColumns = 1024;         // of rows that are folded into each other
constexpr int64_t kShortLanes = 8;         // of what such a run leaves over
constexpr int64_t kShortRun = 64;          // shorter runs are folded as rows where there are rows
constexpr int64_t kBlock = 64;             // steps before lanes are emptied into totals
constexpr int64_t kPieceElements = 32768;  // of a piece of one reduction
constexpr int64_t kFewOutputs = 256;       // fewer than this: a long reduction is cut into pieces
constexpr int64_t kGrain = 16384;          // elements worth a thread of their own

template <class T>
using LaneOf = std::conditional_t<std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>, float, T>;

template <class T>
struct Sum {
  using Lane = std::conditional_t<std::is_integral_v<T>, int64_t, LaneOf<T>>;
  using Total = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
  using Result = std::conditional_t<std::is_integral_v<T>, int64_t, T>;
  static constexpr Lane kStart = 0;
  static Lane fold(Lane a, Lane x) { return a + x; }
  static Total fold_total(Total a, Total x) { return a + x; }
  static Result finish(Total total, int64_t) { return static_cast<Result>(static_cast<LaneOf<Result>>(total)); }
};

// Of bf16, with the sum as f32.
template <class T>
struct WideSum : Sum<T> {
  using Result = std::conditional_t<std::is_integral_v<T>, int64_t, LaneOf<T>>;
  static Result finish(typename Sum<T>::Total total, int64_t) { return static_cast<Result>(total); }
};

template <class T>
struct Mean : Sum<T> {
  static T finish(double total, int64_t count) {
    return static_cast<T>(static_cast<LaneOf<T>>(total / static_cast<double>(count)));
  }
};

template <class T, bool Largest>
struct Extremum {
  using Lane = LaneOf<T>;
  using Total = Lane;
  using Result = T;
  static constexpr Lane start() {
    using Limits = std::numeric_limits<Lane>;
    if constexpr (Limits::has_infinity) return Largest ? -Limits::infinity() : Limits::infinity();
    return Largest ? Limits::lowest() : Limits::max();
  }
  static constexpr Lane kStart = start();
  static Lane fold(Lane a, Lane x) { return ((Largest ? x > a : x < a) | (x != x)) ? x : a; }  // NaN wins and stays
  static Total fold_total(Total a, Total x) { return fold(a, x); }
  static Result finish(Total total, int64_t) { return static_cast<Result>(total); }
};
template <class T>
using Max = Extremum<T, true>;
template <class T>
using Min = Extremum<T, false>;

struct Axes {
  Shape extents, strides;

  int64_t offset(int64_t index) const {  // of an index in row-major order
    if (extents.rank() == 1) return index * strides[0];
    int64_t sum = 0;
    for (int i = extents.rank() - 1; i >= 0; --i) {
      sum += index % extents[i] * strides[i];
      index /= extents[i];
    }
    return sum;
  }
};

// The work of one reduction: outputs × pieces units. A unit folds some of the steps of one number (runs) or of one tile
// of neighbouring columns (rows).
struct Reduction {
  bool runs = false;  // the innermost axis is reduced, and folded run by run
  Axes kept;          // but for the innermost axis when it is kept
  Axes reduced;       // but for the innermost axis when it is reduced
  int64_t row = 1;    // extent of the innermost axis
  int64_t group = 1;  // neighbouring columns that make one result, when short runs are folded as rows
  int64_t segments;   // parts that a row is cut into: runs, or tiles of columns
  int64_t segment;    // elements of all but the last
  int64_t pieces;     // of one output's steps
  int64_t count;      // elements folded to one

  Reduction(const Shape& shape, const Shape& axes);

  int64_t outputs() const { return kept.extents.count() * (runs ? 1 : segments); }
  int64_t steps() const { return reduced.extents.count() * (runs ? segments : 1); }
  int64_t width() const { return runs ? 1 : std::min(row, segment); }  // totals of a unit

  // Of output `output`: where it begins in the input, how many totals it has, where its results go.
  int64_t source(int64_t output) const {
    return runs ? kept.offset(output) : kept.offset(output / segments) + output % segments * segment;
  }
  int64_t columns(int64_t output) const { return runs ? 1 : std::min(segment, row - output % segments * segment); }
  int64_t target(int64_t output) const {
    return runs ? output : (output / segments * row + output % segments * segment) / group;
  }

 private:
  void take_short_runs_as_rows();
};

Reduction::Reduction(const Shape& shape, const Shape& axes) {
  Shape extents, strides;
  bool is_reduced[Shape::kMaxRank] = {};
  Shape all_strides = row_major_strides(shape);
  int next = 0;
  for (int i = 0; i < shape.rank(); ++i) {
    bool flag = next < axes.rank() && axes[next] == i;
    next += flag;
    if (shape[i] == 1) continue;
    int last = extents.rank() - 1;
    if (last >= 0 && is_reduced[last] == flag) {
      extents[last] *= shape[i];
      strides[last] = all_strides[i];
    } else {
      is_reduced[extents.rank()] = flag;
      extents.push_back(shape[i]);
      strides.push_back(all_strides[i]);
    }
  }
  count = 1;
  for (int i = 0; i < extents.rank(); ++i) {
    if (is_reduced[i]) count *= extents[i];
    if (i + 1 == extents.rank()) {
      row = extents[i];
      runs = is_reduced[i];
    } else {
      Axes& side = is_reduced[i] ? reduced : kept;
      side.extents.push_back(extents[i]);
      side.strides.push_back(strides[i]);
    }
  }
  if (runs && row < kShortRun && reduced.extents.rank() > 0) take_short_runs_as_rows();
  segment = runs ? kPieceElements : kColumns / group * group;
  segments = std::max<int64_t>(1, (row + segment - 1) / segment);
  const int64_t across = std::min(row, segment), elements = steps() * across;   // of one output
  const int64_t fewest = std::max(kPieceElements, runs ? 0 : kBlock * across);  // of a piece
  pieces = outputs() < kFewOutputs ? std::max<int64_t>(1, std::min(elements / fewest, steps())) : 1;
}

void Reduction::take_short_runs_as_rows() {
  runs = false;
  group = row;
  row *= kept.extents[-1];  // the axis just outside an innermost reduced one is kept
  Axes outer;
  for (int i = 0; i + 1 < kept.extents.rank(); ++i) {
    outer.extents.push_back(kept.extents[i]);
    outer.strides.push_back(kept.strides[i]);
  }
  kept = outer;
}

// Folds `steps` steps of Width neighbours to one number.
template <class Fold, int64_t Width, class T>
typename Fold::Lane fold_lanes(const T* x, int64_t steps) {
  using Lane = typename Fold::Lane;
  Lane lanes[Width];
  std::fill_n(lanes, Width, Fold::kStart);
  for (int64_t i = 0; i < steps; ++i)
    for (int64_t lane = 0; lane < Width; ++lane)
      lanes[lane] = Fold::fold(lanes[lane], static_cast<Lane>(x[i * Width + lane]));
  for (int64_t half = Width / 2; half >= 1; half /= 2)
    for (int64_t lane = 0; lane < half; ++lane) lanes[lane] = Fold::fold(lanes[lane], lanes[lane + half]);
  return lanes[0];
}

// Folds a run of memory to one number.
template <class Fold, class T>
typename Fold::Total fold_run(const T* x, int64_t count) {
  using Lane = typename Fold::Lane;
  using Total = typename Fold::Total;
  Total total = Fold::kStart;
  while (count >= kLanes) {
    int64_t steps = std::min(kBlock, count / kLanes);
    total = Fold::fold_total(total, static_cast<Total>(fold_lanes<Fold, kLanes>(x, steps)));
    x += steps * kLanes;
    count -= steps * kLanes;
  }
  Lane rest = Fold::kStart;
  if (int64_t steps = count / kShortLanes; steps > 0) {
    rest = fold_lanes<Fold, kShortLanes>(x, steps);
    x += steps * kShortLanes;
    count -= steps * kShortLanes;
  }
  for (int64_t i = 0; i < count; ++i) rest = Fold::fold(rest, static_cast<Lane>(x[i]));
  return Fold::fold_total(total, static_cast<Total>(rest));
}

// Folds rows of `width` columns into totals. Rows that follow each other in memory (`stride` == width) are taken
// several at a time when they are short, so that lanes are never few.
template <class Fold, class T>
void fold_rows(const T* x, int64_t rows, int64_t stride, int64_t width, typename Fold::Total* totals) {
  using Lane = typename Fold::Lane;
  using Total = typename Fold::Total;
  int64_t together = stride == width ? std::max<int64_t>(1, kColumns / width) : 1;
  Lane lanes[kColumns];
  while (rows > 0) {
    if (rows < together) together = 1;
    int64_t columns = together * width, steps = std::min(kBlock, rows / together);
    std::fill_n(lanes, columns, Fold::kStart);
    for (int64_t i = 0; i < steps; ++i) {
      const T* row = x + i * together * stride;
      for (int64_t c = 0; c < columns; ++c) lanes[c] = Fold::fold(lanes[c], static_cast<Lane>(row[c]));
    }
    for (int64_t group = 0; group < together; ++group)
      for (int64_t c = 0; c < width; ++c)
        totals[c] = Fold::fold_total(totals[c], static_cast<Total>(lanes[group * width + c]));
    x += steps * together * stride;
    rows -= steps * together;
  }
}

// Folds steps [begin, end) of one output: each step is a segment of a run.
template <class Fold, class T>
typename Fold::Total fold_segments(const Reduction& work, const T* x, int64_t begin, int64_t end) {
  typename Fold::Total total = Fold::kStart;
  for (int64_t step = begin; step < end; ++step) {
    int64_t first = step % work.segments * work.segment;
    const T* run = x + work.reduced.offset(step / work.segments) + first;
    total = Fold::fold_total(total, fold_run<Fold>(run, std::min(work.segment, work.row - first)));
  }
  return total;
}

// Folds rows [begin, end) of one tile. The last reduced axis lies just outside the row.
template <class Fold, class T>
void fold_tile(const Reduction& work, const T* x, int64_t width, int64_t begin, int64_t end,
               typename Fold::Total* totals) {
  std::fill_n(totals, width, Fold::kStart);
  if (work.reduced.extents.rank() == 0) return fold_rows<Fold>(x, end - begin, work.row, width, totals);
  int64_t near = work.reduced.extents[-1];
  while (begin < end) {
    int64_t rows = std::min(end - begin, near - begin % near);
    fold_rows<Fold>(x + work.reduced.offset(begin), rows, work.row, width, totals);
    begin += rows;
  }
}

template <class Fold, class T>
class Reducer {
 public:
  using Total = typename Fold::Total;
  using Result = typename Fold::Result;

  Reducer(const Reduction& work, const Run& run)
      : work_(work), input_(run.input<T>(0)), output_(run.output<Result>()) {}

  // `partial` [outputs, pieces, width] is used when there are several pieces.
  void run(Total* partial, ThreadPool& threads) {
    int64_t outputs = work_.outputs(), pieces = work_.pieces, width = work_.width();
    if (outputs == 0 || width == 0) return;
    int64_t unit_elements = std::max<int64_t>(1, work_.steps() * std::min(work_.row, work_.segment) / pieces);
    threads.parallel_for(outputs * pieces, std::max<int64_t>(1, kGrain / unit_elements),
                         [&](int64_t begin, int64_t end) {
                           Total totals[kColumns];
                           for (int64_t unit = begin; unit < end; ++unit) {
                             Total* own = pieces == 1 ? totals : partial + unit * width;
                             fold(unit / pieces, unit % pieces, own);
                             if (pieces == 1) write(unit, own);
                           }
                         });
    for (int64_t output = 0; pieces > 1 && output < outputs; ++output) {
      Total* totals = partial + output * pieces * width;
      for (int64_t piece = 1; piece < pieces; ++piece)
        for (int64_t c = 0; c < work_.columns(output); ++c)
          totals[c] = Fold::fold_total(totals[c], totals[piece * width + c]);
      write(output, totals);
    }
  }

 private:
  void fold(int64_t output, int64_t piece, Total* totals) {
    int64_t steps = work_.steps(), begin = steps * piece / work_.pieces, end = steps * (piece + 1) / work_.pieces;
    const T* source = input_ + work_.source(output);
    if (work_.runs) {
      totals[0] = fold_segments<Fold>(work_, source, begin, end);
    } else {
      fold_tile<Fold>(work_, source, work_.columns(output), begin, end, totals);
    }
  }

  void write(int64_t output, const Total* totals) {
    Result* target = output_ + work_.target(output);
    int64_t columns = work_.columns(output);
    for (int64_t c = 0; c < columns; c += work_.group) {
      Total total = totals[c];
      for (int64_t i = 1; i < work_.group; ++i) total = Fold::fold_total(total, totals[c + i]);
      *target++ = Fold::finish(total, work_.count);
    }
  }

  const Reduction& work_;
  const T* input_;
  Result* output_;
};

template <template <class> class Fold>
Candidate candidate_for(const KernelRequest& request, std::string name, const Reduction& work) {
  return dispatch_in_set(request.node.inputs[0].spec().dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    Candidate candidate = make_candidate(request, std::move(name), [work](const Run& run) {
      Reducer<Fold<T>, T>(work, run).run(static_cast<typename Fold<T>::Total*>(run.workspace), *run.threads);
    });
    if (work.pieces > 1)
      candidate.workspace_bytes =
          static_cast<size_t>(work.outputs() * work.pieces * work.width()) * sizeof(typename Fold<T>::Total);
    return candidate;
  });
}

// Whether the axes that are kept come in the same order when the channels are stored last.
bool keeps_order(const Shape& shape, const Shape& axes) {
  auto kept = [&](int axis) {
    return shape[axis] != 1 && std::find(axes.extents().begin(), axes.extents().end(), axis) == axes.extents().end();
  };
  return !kept(1) || (!kept(2) && !kept(3));
}

template <template <class> class Fold>
std::vector<Candidate> candidates(const KernelRequest& request) {
  const TensorSpec& input = request.node.inputs[0].spec();
  std::vector<Candidate> list;
  if (!has_type_in_set(input.dtype)) return list;
  const Shape& shape = input.shape;
  Shape axes = request.node.attributes.ints("axes");
  list.push_back(candidate_for<Fold>(request, "plain", Reduction(shape, axes)));
  if (shape.rank() != 4 || !keeps_order(shape, axes)) return list;
  Shape stored, stored_axes, order = channels_last().order;
  for (int i = 0; i < 4; ++i) {
    stored.push_back(shape[static_cast<int>(order[i])]);
    if (std::find(axes.extents().begin(), axes.extents().end(), order[i]) != axes.extents().end())
      stored_axes.push_back(i);
  }
  list.push_back(candidate_for<Fold>(request, "nhwc", Reduction(stored, stored_axes)));
  list.back().input_layouts[0] = channels_last();
  return list;
}

}  // namespace

BONFIRE_CPU_KERNELS(reduce, {"sum", candidates<Sum>}, {"sum_as_f32", candidates<WideSum>}, {"mean", candidates<Mean>},
                    {"max", candidates<Max>}, {"min", candidates<Min>})

}  // namespace bonfire::cpu
