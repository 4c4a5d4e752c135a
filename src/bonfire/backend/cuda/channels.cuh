#pragma once
// Work per channel over an image in either layout: sums over everything but the channel, and maps whose coefficients
// depend on the channel. What is computed is a body:
//
//   struct Body {
//     template <int width> struct Lane { ... };                 // coefficients of `width` neighbouring elements
//     template <int width> __device__ Lane<width> lane(int channel, int step) const;  // of channel, channel + step, …
//     template <int width> struct Item { ... };                 // what is read there
//     template <int width> __device__ Item<width> read(int64_t offset) const;
//     // of a sum:
//     template <int width> __device__ void add(const Lane<width>&, const Item<width>&, C (&sums)[kSums][width]) const;
//     __device__ void finish(int channel, const C (&sums)[kSums]) const;
//     // of a map:
//     template <int width> __device__ void write(const Lane<width>&, const Item<width>&, int64_t offset) const;
//   };
//
// A thread keeps its channels and walks over rows, so coefficients are read once; it reads a few rows before it uses
// the first, so that memory is kept busy. Channels-last images are rows [rows, channels]; row-major ones are planes
// [outer, channels, inner].
//
// Sums are made in a fixed order, so that they are the same on every run: blocks leave partial sums in the workspace,
// and the last block of each tile of channels adds them up.

#include <algorithm>

#include "bonfire/backend/cuda/numbers.cuh"
#include "bonfire/backend/cuda/runtime.h"

namespace bonfire::cuda {

// x [outer, channels, inner]; inner is 1 when channels are innermost.
struct ChannelShape {
  int64_t outer = 1, channels = 1, inner = 1;
};

constexpr int kSumThreads = 512, kMapThreads = 256;
constexpr int kMaxLanes = 8;  // packs of 16 bytes side by side: a line of the cache
constexpr int kInFlight = 4;  // rows that a thread reads ahead

// How a reduction is cut. Made once, when the kernel is built.
struct ChannelPlan {
  int width = 1;     // elements of a pack
  int lanes = 1;     // packs side by side in a block (a power of two); 1 for planes
  int tiles = 1;     // of channels
  int chunks = 1;    // of rows, each a block
  int64_t span = 1;  // rows (or planes) of a chunk

  size_t workspace_bytes(int sums) const {
    size_t per_tile = static_cast<size_t>(lanes) * static_cast<size_t>(width);
    return static_cast<size_t>(chunks) * static_cast<size_t>(tiles) * per_tile * static_cast<size_t>(sums) *
           sizeof(float);
  }
};

// As many blocks as fill the device, but none with less than `least` rows for each of its threads.
inline ChannelPlan plan_channels(const ChannelShape& shape, int width, int threads, int blocks, int64_t least) {
  ChannelPlan plan;
  plan.width = width;
  int64_t rows_at_once = 1;
  if (shape.inner == 1) {
    int64_t packs = shape.channels / width;
    while (plan.lanes < kMaxLanes && plan.lanes < packs) plan.lanes *= 2;
    plan.tiles = static_cast<int>((packs + plan.lanes - 1) / plan.lanes);
    rows_at_once = threads / plan.lanes;
  } else {
    plan.tiles = static_cast<int>(shape.channels);
  }
  int64_t wanted = std::max<int64_t>(1, blocks / plan.tiles);
  int64_t most = std::max<int64_t>(1, (shape.outer + rows_at_once * least - 1) / (rows_at_once * least));
  if (shape.inner != 1) most = shape.outer;
  plan.chunks = static_cast<int>(std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, most)));
  plan.span = std::max<int64_t>(1, (shape.outer + plan.chunks - 1) / plan.chunks);
  plan.chunks = static_cast<int>(std::max<int64_t>(1, (shape.outer + plan.span - 1) / plan.span));
  return plan;
}

inline ChannelPlan plan_sum(const ChannelShape& shape, int width, int multiprocessors) {
  return plan_channels(shape, width, kSumThreads, multiprocessors, kInFlight);
}
inline ChannelPlan plan_map(const ChannelShape& shape, int width, int multiprocessors) {
  return plan_channels(shape, width, kMapThreads, multiprocessors * 4, 1);
}

// Whether this is the last of `blocks` blocks to get here. What the others wrote before is visible then.
__device__ inline bool is_last_block(unsigned* counter, unsigned blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(counter, 1) == blocks - 1;
    if (last) *counter = 0;
  }
  __syncthreads();
  if (last) __threadfence();
  return last;
}

// For the packs of this thread, kInFlight at a time: read(offset) for all of them, then use(item, offset).
template <int width, class Read, class Use>
__device__ inline void walk_channels(const ChannelShape& shape, const ChannelPlan& plan, int channel, int threads,
                                     const Read& read, const Use& use) {
  bool planes = shape.inner != 1;
  int64_t begin = static_cast<int64_t>(blockIdx.y) * plan.span;
  int64_t end = begin + plan.span < shape.outer ? begin + plan.span : shape.outer;
  int64_t packs = planes ? shape.inner / width : 1;
  int64_t first = planes ? threadIdx.x : begin + threadIdx.x / plan.lanes;
  int64_t last = planes ? (end - begin) * packs : end, step = planes ? threads : threads / plan.lanes;
  auto offset_of = [&](int64_t i) {
    if (!planes) return i * shape.channels + channel;
    return ((begin + i / packs) * shape.channels + channel) * shape.inner + i % packs * width;
  };
  int64_t i = first;
  for (; i + (kInFlight - 1) * step < last; i += kInFlight * step) {
    decltype(read(int64_t{})) items[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) items[k] = read(offset_of(i + k * step));
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) use(items[k], offset_of(i + k * step));
  }
  for (; i < last; i += step) use(read(offset_of(i)), offset_of(i));
}

// The sums of the block's threads: element e of sum s, of the lane's `width` elements each, to own[s * elements + e].
template <int width, int kSums, class C>
__device__ inline void add_block(C (&sums)[kSums][width], const ChannelPlan& plan, bool planes, C* shared, C* own) {
  constexpr int kWarps = kSumThreads / 32;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, elements = planes ? 1 : plan.lanes * width;
  if (planes) {
    for (int s = 0; s < kSums; ++s)
      for (int k = 1; k < width; ++k) sums[s][0] += sums[s][k];
  }
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
#pragma unroll
    for (int k = 0; k < width; ++k) {
      if (planes && k > 0) break;
      for (int distance = plan.lanes; distance < 32; distance *= 2)
        sums[s][k] += __shfl_xor_sync(0xffffffffU, sums[s][k], distance);
      if (lane < plan.lanes) shared[(warp * kSums + s) * elements + (planes ? 0 : lane * width + k)] = sums[s][k];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kSums * elements; i += kSumThreads) {
    C total = 0;
    for (int w = 0; w < kWarps; ++w) total += shared[w * kSums * elements + i];
    own[i] = total;
  }
}

template <int width, class Body>
__global__ void __launch_bounds__(kSumThreads)
    sum_channels(Body body, ChannelShape shape, ChannelPlan plan, typename Body::C* partials, unsigned* counters) {
  using C = typename Body::C;
  constexpr int kSums = Body::kSums;
  constexpr int kShared = kSumThreads / 32 * kSums * kMaxLanes * width;
  __shared__ C shared[kShared > kSumThreads ? kShared : kSumThreads];
  bool planes = shape.inner != 1;
  int tile = static_cast<int>(blockIdx.x), chunk = static_cast<int>(blockIdx.y);
  int channel = planes ? tile : (tile * plan.lanes + static_cast<int>(threadIdx.x) % plan.lanes) * width;
  C sums[kSums][width] = {};
  if (channel < shape.channels) {
    auto coefficients = body.template lane<width>(channel, planes ? 0 : 1);
    walk_channels<width>(
        shape, plan, channel, kSumThreads, [&](int64_t offset) { return body.template read<width>(offset); },
        [&](const auto& item, int64_t) { body.template add<width>(coefficients, item, sums); });
  }
  // partials [chunk, tile, sum, element]: an element is a channel of the tile, or the only one for planes.
  int elements = planes ? 1 : plan.lanes * width, values = kSums * elements;
  add_block(sums, plan, planes, shared, partials + (static_cast<int64_t>(chunk) * plan.tiles + tile) * values);
  if (!is_last_block(counters + tile, static_cast<unsigned>(plan.chunks))) return;

  // Groups of threads take every n-th chunk, a thread one value of it; then the groups are added up.
  int group_size = 1;
  while (group_size < values) group_size *= 2;
  int groups = kSumThreads / group_size, group = static_cast<int>(threadIdx.x) / group_size;
  int value = static_cast<int>(threadIdx.x) % group_size;
  C total = 0;
  if (value < values) {
    const C* from = partials + static_cast<int64_t>(tile) * values + value;
    int64_t stride = static_cast<int64_t>(plan.tiles) * values;
#pragma unroll 8
    for (int i = group; i < plan.chunks; i += groups) total += __ldcg(from + i * stride);
  }
  __syncthreads();
  shared[threadIdx.x] = total;
  __syncthreads();
  int finished = planes ? tile : tile * elements + static_cast<int>(threadIdx.x);
  if (threadIdx.x >= elements || finished >= shape.channels) return;
  C totals[kSums];
  for (int s = 0; s < kSums; ++s) {
    totals[s] = 0;
    for (int g = 0; g < groups; ++g) totals[s] += shared[g * group_size + s * elements + static_cast<int>(threadIdx.x)];
  }
  body.finish(finished, totals);
}

template <int width, class Body>
__global__ void __launch_bounds__(kMapThreads) map_channels(Body body, ChannelShape shape, ChannelPlan plan) {
  bool planes = shape.inner != 1;
  int tile = static_cast<int>(blockIdx.x);
  int channel = planes ? tile : (tile * plan.lanes + static_cast<int>(threadIdx.x) % plan.lanes) * width;
  if (channel >= shape.channels) return;
  auto coefficients = body.template lane<width>(channel, planes ? 0 : 1);
  walk_channels<width>(
      shape, plan, channel, kMapThreads, [&](int64_t offset) { return body.template read<width>(offset); },
      [&](const auto& item, int64_t offset) { body.template write<width>(coefficients, item, offset); });
}

// Packs are full or single elements: other widths are rare and would cost a kernel each.
template <class T>
int channel_width(const ChannelShape& shape) {
  constexpr int kFull = 16 / static_cast<int>(sizeof(T));
  return (shape.inner == 1 ? shape.channels : shape.inner) % kFull == 0 ? kFull : 1;
}
template <class T, class Body>
void full_or_one(int width, Body&& body) {
  constexpr int kFull = 16 / static_cast<int>(sizeof(T));
  if (width == 1) return body(std::integral_constant<int, 1>{});
  body(std::integral_constant<int, kFull>{});
}

template <class T, class Body>
void run_sum_channels(const Body& body, const ChannelShape& shape, const ChannelPlan& plan, void* workspace,
                      unsigned* counters, cudaStream_t stream) {
  dim3 blocks(static_cast<unsigned>(plan.tiles), static_cast<unsigned>(plan.chunks));
  full_or_one<T>(plan.width, [&](auto width) {
    sum_channels<width.value>
        <<<blocks, kSumThreads, 0, stream>>>(body, shape, plan, static_cast<typename Body::C*>(workspace), counters);
  });
  check(cudaGetLastError(), "sum_channels");
}

template <class T, class Body>
void run_map_channels(const Body& body, const ChannelShape& shape, const ChannelPlan& plan, cudaStream_t stream) {
  dim3 blocks(static_cast<unsigned>(plan.tiles), static_cast<unsigned>(plan.chunks));
  full_or_one<T>(plan.width,
                 [&](auto width) { map_channels<width.value><<<blocks, kMapThreads, 0, stream>>>(body, shape, plan); });
  check(cudaGetLastError(), "map_channels");
}

}  // namespace bonfire::cuda
