#include "bonfire/backend/cpu/ops/strided_copy.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "bonfire/base/error.h"

namespace bonfire::cpu {

namespace {

constexpr int64_t kGrain = 16384;  // elements worth a thread of their own
constexpr int64_t kBlock = 16;     // channels of a blocked image
constexpr int64_t kTile = 32;      // a tile of both sides stays in the first-level cache

// Where a row begins on both sides, for rows counted in row-major order over the outer axes.
class RowWalk {
 public:
  RowWalk(const Shape& extents, const Shape& source_strides, const Shape& target_strides, int64_t row)
      : extents_(extents), source_strides_(source_strides), target_strides_(target_strides) {
    for (int i = extents.rank() - 1; i >= 0; --i) {
      index_[i] = row % extents[i];
      row /= extents[i];
      source += index_[i] * source_strides[i];
      target += index_[i] * target_strides[i];
    }
  }
  void next() {
    for (int i = extents_.rank() - 1; i >= 0; --i) {
      source += source_strides_[i];
      target += target_strides_[i];
      if (++index_[i] < extents_[i]) return;
      source -= extents_[i] * source_strides_[i];
      target -= extents_[i] * target_strides_[i];
      index_[i] = 0;
    }
  }

  int64_t source = 0, target = 0;  // elements

 private:
  const Shape &extents_, &source_strides_, &target_strides_;
  int64_t index_[Shape::kMaxRank] = {};
};

template <class T>
void copy_run(const T* source, int64_t source_stride, T* target, int64_t target_stride, int64_t count) {
  if (target_stride == 1 && source_stride == 1) {
    if (count == kBlock) {
      std::memcpy(target, source, kBlock * sizeof(T));  // of a size known here: a few vectors
    } else if (count < 32) {
      for (int64_t i = 0; i < count; ++i) target[i] = source[i];
    } else {
      std::memcpy(target, source, static_cast<size_t>(count) * sizeof(T));
    }
  } else if (target_stride == 1 && source_stride == 0) {
    std::fill_n(target, count, *source);
  } else {
    for (int64_t i = 0; i < count; ++i) target[i * target_stride] = source[i * source_stride];
  }
}

// target[r][c] = source[c][r]
template <class T>
void copy_tile(const T* source, int64_t source_stride, T* target, int64_t target_stride, int64_t rows,
               int64_t columns) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) target[r * target_stride + c] = source[c * source_stride + r];
}

}  // namespace

void StridedCopy::Axes::push_back(const Axis& axis) {
  extents.push_back(axis.extent);
  source_strides.push_back(axis.source_stride);
  target_strides.push_back(axis.target_stride);
}

StridedCopy::StridedCopy(const Shape& shape, const Shape& source_strides, const Shape& target_strides,
                         size_t element_bytes)
    : element_bytes_(element_bytes) {
  std::vector<Axis> axes;  // without extents of 1, neighbours merged where both sides allow it
  for (int i = 0; i < shape.rank(); ++i) {
    Axis axis{shape[i], source_strides[i], target_strides[i]};
    if (axis.extent == 1) continue;
    if (!axes.empty() && axes.back().source_stride == axis.source_stride * axis.extent &&
        axes.back().target_stride == axis.target_stride * axis.extent) {
      axis.extent *= axes.back().extent;
      axes.pop_back();
    }
    axes.push_back(axis);
  }
  if (axes.empty()) return;
  row_ = axes.back();
  axes.pop_back();
  for (const Axis& axis : axes) {
    if (axis.source_stride == 1 && row_.source_stride > 1 && row_.target_stride == 1 && !transpose_) {
      column_ = axis;
      transpose_ = true;
    } else {
      outer_.push_back(axis);
    }
  }
}

template <class T>
void StridedCopy::copy_rows(const T* source, T* target, ThreadPool& threads) const {
  // Cut anywhere, also inside rows: a single long row is shared too.
  threads.parallel_for(outer_.extents.count() * row_.extent, kGrain, [&](int64_t begin, int64_t end) {
    RowWalk walk(outer_.extents, outer_.source_strides, outer_.target_strides, begin / row_.extent);
    int64_t first = begin % row_.extent;
    while (begin < end) {
      int64_t count = std::min(row_.extent - first, end - begin);
      copy_run(source + walk.source + first * row_.source_stride, row_.source_stride,
               target + walk.target + first * row_.target_stride, row_.target_stride, count);
      begin += count;
      first = 0;
      walk.next();
    }
  });
}

// Columns of the source become rows of the target: square tiles keep both sides' cache lines in use.
template <class T>
void StridedCopy::copy_tiles(const T* source, T* target, ThreadPool& threads) const {
  int64_t bands = (column_.extent + kTile - 1) / kTile;
  int64_t grain = std::max<int64_t>(1, kGrain / (std::min(column_.extent, kTile) * row_.extent));
  threads.parallel_for(outer_.extents.count() * bands, grain, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      RowWalk walk(outer_.extents, outer_.source_strides, outer_.target_strides, unit / bands);
      int64_t band = unit % bands * kTile, rows = std::min(kTile, column_.extent - band);
      const T* from = source + walk.source + band;
      T* to = target + walk.target + band * column_.target_stride;
      for (int64_t first = 0; first < row_.extent; first += kTile)
        copy_tile(from + first * row_.source_stride, row_.source_stride, to + first, column_.target_stride, rows,
                  std::min(kTile, row_.extent - first));
    }
  });
}

void StridedCopy::run(const void* source, void* target, ThreadPool& threads) const {
  if (outer_.extents.count() * row_.extent * column_.extent == 0) return;
  auto copy = [&](auto word) {
    using T = decltype(word);
    if (transpose_) {
      copy_tiles(static_cast<const T*>(source), static_cast<T*>(target), threads);
    } else {
      copy_rows(static_cast<const T*>(source), static_cast<T*>(target), threads);
    }
  };
  switch (element_bytes_) {
    case 1: return copy(uint8_t{});
    case 2: return copy(uint16_t{});
    case 4: return copy(uint32_t{});
    case 8: return copy(uint64_t{});
    default: BONFIRE_CHECK(false, "no copy for elements of {} bytes", element_bytes_);
  }
}

}  // namespace bonfire::cpu
