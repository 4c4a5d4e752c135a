#include <algorithm>
#include <numeric>

#include "bonfire/backend/cuda/numbers.cuh"
#include "bonfire/backend/cuda/runtime.h"
#include "bonfire/backend/cuda/strided_copy.h"

namespace bonfire::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kTile = 32;     // elements, each way
constexpr int kTileRows = 8;  // threads that share a column of a tile

struct Axes {
  int rank;
  int64_t extent[Shape::kMaxRank], read[Shape::kMaxRank], write[Shape::kMaxRank];
};

// One element a thread, neighbours in the target's order.
template <class T, class Index>
__global__ void __launch_bounds__(kThreads) copy_elements(Axes axes, Index count, const T* source, T* target) {
  Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  int64_t from = 0, to = 0;
  for (int axis = axes.rank - 1; axis >= 0; --axis) {
    Index extent = static_cast<Index>(axes.extent[axis]), at = i % extent;
    i /= extent;
    from += static_cast<int64_t>(at) * axes.read[axis];
    to += static_cast<int64_t>(at) * axes.write[axis];
  }
  target[to] = source[from];
}

// A transposition: the source is contiguous along axis `rank - 2`, the target along the last one. A tile is read along
// the first and written along the second, through shared memory. The other axes are the grid's.
template <class T>
__global__ void __launch_bounds__(kTile* kTileRows) transpose_tiles(Axes axes, const T* source, T* target) {
  __shared__ T tile[kTile][kTile + 1];
  int a = axes.rank - 2, b = axes.rank - 1;
  int64_t tiles_b = (axes.extent[b] + kTile - 1) / kTile, tiles_a = (axes.extent[a] + kTile - 1) / kTile;
  int64_t rest = blockIdx.x;
  int64_t begin_b = rest % tiles_b * kTile;
  rest /= tiles_b;
  int64_t begin_a = rest % tiles_a * kTile;
  rest /= tiles_a;
  for (int axis = a - 1; axis >= 0; --axis) {
    int64_t at = rest % axes.extent[axis];
    rest /= axes.extent[axis];
    source += at * axes.read[axis];
    target += at * axes.write[axis];
  }
  for (int row = threadIdx.y; row < kTile; row += kTileRows)
    if (begin_b + row < axes.extent[b] && begin_a + threadIdx.x < axes.extent[a])
      tile[row][threadIdx.x] = source[(begin_b + row) * axes.read[b] + begin_a + threadIdx.x];
  __syncthreads();
  for (int row = threadIdx.y; row < kTile; row += kTileRows)
    if (begin_a + row < axes.extent[a] && begin_b + threadIdx.x < axes.extent[b])
      target[(begin_a + row) * axes.write[a] + begin_b + threadIdx.x] = tile[threadIdx.x][row];
}

__global__ void __launch_bounds__(kThreads) copy_packs(int64_t count, const uint4* source, uint4* target) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) target[i] = source[i];
}

template <class T>
__global__ void __launch_bounds__(kThreads) fill(T* target, T value, int64_t count) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) target[i] = value;
}

template <class Body>
void dispatch_bytes(size_t bytes, Body&& body) {
  switch (bytes) {
    case 1: return body(uint8_t{});
    case 2: return body(uint16_t{});
    case 4: return body(uint32_t{});
    default: return body(uint64_t{});
  }
}

bool is_plain(const StridedCopy& copy) {
  return copy.extents.rank() == 0 || (copy.extents.rank() == 1 && copy.read[0] == 1 && copy.write[0] == 1);
}

// The axis along which the source is contiguous, when it is not the target's last one and both are long enough.
int transposed_axis(const StridedCopy& copy) {
  int rank = copy.extents.rank();
  constexpr int64_t kWorthwhile = 4, kLarge = 1 << 18;  // what is smaller is read from the cache anyway
  if (copy.extents.count() < kLarge || rank < 2 || copy.write[-1] != 1 || copy.read[-1] == 1 ||
      copy.extents[-1] < kWorthwhile)
    return -1;
  for (int axis = 0; axis < rank - 1; ++axis)
    if (copy.read[axis] == 1 && copy.extents[axis] >= kWorthwhile) return axis;
  return -1;
}

Axes axes_of(const StridedCopy& copy) {
  Axes axes{};
  axes.rank = copy.extents.rank();
  std::copy(copy.extents.begin(), copy.extents.end(), axes.extent);
  std::copy(copy.read.begin(), copy.read.end(), axes.read);
  std::copy(copy.write.begin(), copy.write.end(), axes.write);
  return axes;
}

// `axis` moved to the place before the last.
StridedCopy with_second_last(const StridedCopy& copy, int axis) {
  StridedCopy moved = copy;
  for (int i = axis; i + 2 < copy.extents.rank(); ++i) {
    for (Shape* shape : {&moved.extents, &moved.read, &moved.write}) std::swap((*shape)[i], (*shape)[i + 1]);
  }
  return moved;
}

template <class T>
void run_typed(const StridedCopy& copy, const T* source, T* target, cudaStream_t stream) {
  int64_t count = copy.extents.count();
  Axes axes = axes_of(copy);
  if (int axis = transposed_axis(copy); axis >= 0) {
    axes = axes_of(with_second_last(copy, axis));
    int64_t a = axes.extent[axes.rank - 2], b = axes.extent[axes.rank - 1];
    int64_t tiles = (a + kTile - 1) / kTile * ((b + kTile - 1) / kTile) * (count / (a * b));
    transpose_tiles<<<static_cast<unsigned>(tiles), dim3(kTile, kTileRows), 0, stream>>>(axes, source, target);
  } else if (count < (int64_t{1} << 31)) {
    copy_elements<<<blocks_for(count, kThreads), kThreads, 0, stream>>>(axes, static_cast<uint32_t>(count), source,
                                                                        target);
  } else {
    copy_elements<<<blocks_for(count, kThreads), kThreads, 0, stream>>>(axes, static_cast<uint64_t>(count), source,
                                                                        target);
  }
}

}  // namespace

StridedCopy simplified(const StridedCopy& copy) {
  std::vector<int> order(static_cast<size_t>(copy.extents.rank()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return copy.write[a] > copy.write[b]; });
  StridedCopy result = copy;
  result.extents = result.read = result.write = {};
  for (int axis : order) {
    if (copy.extents[axis] == 1) continue;
    int last = result.extents.rank() - 1;
    if (last >= 0 && result.read[last] == copy.read[axis] * copy.extents[axis] &&
        result.write[last] == copy.write[axis] * copy.extents[axis]) {
      result.extents[last] *= copy.extents[axis];
      result.read[last] = copy.read[axis];
      result.write[last] = copy.write[axis];
    } else {
      result.extents.push_back(copy.extents[axis]);
      result.read.push_back(copy.read[axis]);
      result.write.push_back(copy.write[axis]);
    }
  }
  return result;
}

void run_strided_copy(const StridedCopy& copy, const void* source, void* target, cudaStream_t stream) {
  int64_t count = copy.extents.count();
  if (count == 0) return;
  auto bytes = static_cast<int64_t>(copy.element_bytes);
  const char* from = static_cast<const char*>(source) + copy.read_offset * bytes;
  char* to = static_cast<char*>(target) + copy.write_offset * bytes;
  constexpr int64_t kPack = sizeof(uint4);
  bool whole_packs = (reinterpret_cast<uint64_t>(from) | reinterpret_cast<uint64_t>(to)) % kPack == 0;
  if (is_plain(copy) && whole_packs && count * bytes % kPack == 0) {
    int64_t packs = count * bytes / kPack;
    copy_packs<<<blocks_for(packs, kThreads), kThreads, 0, stream>>>(packs, reinterpret_cast<const uint4*>(from),
                                                                     reinterpret_cast<uint4*>(to));
  } else {
    dispatch_bytes(copy.element_bytes, [&](auto type) {
      using T = decltype(type);
      run_typed(copy, reinterpret_cast<const T*>(from), reinterpret_cast<T*>(to), stream);
    });
  }
  check(cudaGetLastError(), "strided copy");
}

void fill_pattern(void* target, uint64_t pattern, size_t bytes, int64_t count, cudaStream_t stream) {
  if (count == 0) return;
  dispatch_bytes(bytes, [&](auto type) {
    using T = decltype(type);
    fill<<<blocks_for(count, kThreads), kThreads, 0, stream>>>(static_cast<T*>(target), static_cast<T>(pattern), count);
  });
  check(cudaGetLastError(), "fill");
}

}  // namespace bonfire::cuda
