#pragma once
// Work per channel over an image in either layout: sums over everything but the channel, and maps whose coefficients
// depend on the channel. What is computed is a body:
//
//   struct Body {
//     template <int width> struct Lane { ... };                 // coefficients of `width` neighbouring elements
//     template <int width> __device__ Lane<width> lane(int channel, int step) const;  // of channel, channel + step, …
//     template <int width> __device__ void add(const Lane<width>&, int64_t offset, C (&sums)[kSums][width]) const;
//     template <int width> __device__ void map(const Lane<width>&, int64_t offset) const;
//     __device__ void finish(int channel, const C (&sums)[kSums]) const;
//   };
//
// A thread keeps its channels and walks over rows, so coefficients are read once. Channels-last images are rows
// [rows, channels]; row-major ones are planes [outer, channels, inner].
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

constexpr int kChannelThreads = 256;
constexpr int kMaxLanes = 8;  // packs of 16 bytes side by side: a line of the cache

// How a reduction is cut. Made once, when the kernel is built.
struct ChannelPlan {
  int width = 1;     // elements of a pack
  int lanes = 1;     // packs side by side in a block (a power of two); 1 for planes
  int tiles = 1;     // of channels
  int chunks = 1;    // of rows, each a block
  int64_t span = 1;  // rows (or planes) of a chunk

  size_t workspace_bytes(int sums, size_t compute_bytes) const {
    size_t per_tile = static_cast<size_t>(lanes) * static_cast<size_t>(width);
    return static_cast<size_t>(chunks) * static_cast<size_t>(tiles) * per_tile * static_cast<size_t>(sums) *
           compute_bytes;
  }
};

inline ChannelPlan plan_channels(const ChannelShape& shape, int width, int multiprocessors, int blocks_per_processor) {
  ChannelPlan plan;
  plan.width = width;
  int64_t rows_at_once = 1;
  if (shape.inner == 1) {
    int64_t packs = shape.channels / width;
    while (plan.lanes < kMaxLanes && plan.lanes < packs) plan.lanes *= 2;
    plan.tiles = static_cast<int>((packs + plan.lanes - 1) / plan.lanes);
    rows_at_once = kChannelThreads / plan.lanes;
  } else {
    plan.tiles = static_cast<int>(shape.channels);
  }
  int64_t wanted = std::max<int64_t>(1, int64_t{multiprocessors} * blocks_per_processor / plan.tiles);
  int64_t most = std::max<int64_t>(1, (shape.outer + rows_at_once - 1) / rows_at_once);
  plan.chunks = static_cast<int>(std::min(wanted, most));
  plan.span = std::max<int64_t>(1, (shape.outer + plan.chunks - 1) / plan.chunks);
  plan.chunks = static_cast<int>(std::max<int64_t>(1, (shape.outer + plan.span - 1) / plan.span));
  return plan;
}

// Adds `value` of all threads of the block that have the same threadIdx.x % lanes; the sum is threads 0 … lanes - 1's.
template <class C>
__device__ inline C add_across(C value, int lanes, C* shared) {
  for (int distance = lanes; distance < 32; distance *= 2) value += __shfl_xor_sync(0xffffffffU, value, distance);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  __syncthreads();
  if (lane < lanes) shared[warp * lanes + lane] = value;
  __syncthreads();
  C sum = 0;
  if (threadIdx.x < lanes)
    for (int i = 0; i < kChannelThreads / 32; ++i) sum += shared[i * lanes + threadIdx.x];
  return sum;
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

template <int width, class Body>
__global__ void __launch_bounds__(kChannelThreads)
    sum_channels(Body body, ChannelShape shape, ChannelPlan plan, typename Body::C* partials, unsigned* counters) {
  using C = typename Body::C;
  constexpr int kSums = Body::kSums;
  __shared__ C shared[kChannelThreads / 32 * kMaxLanes];
  bool planes = shape.inner != 1;
  int tile = blockIdx.x, chunk = blockIdx.y, lane = threadIdx.x % plan.lanes, row = threadIdx.x / plan.lanes;
  int channel = planes ? tile : (tile * plan.lanes + lane) * width;
  C sums[kSums][width] = {};
  int64_t begin = chunk * plan.span, end = begin + plan.span < shape.outer ? begin + plan.span : shape.outer;
  if (channel < shape.channels) {
    auto coefficients = body.template lane<width>(channel, planes ? 0 : 1);
    if (planes) {
      int64_t packs = shape.inner / width, count = (end - begin) * packs;
#pragma unroll 4
      for (int64_t i = threadIdx.x; i < count; i += kChannelThreads) {
        int64_t plane = (begin + i / packs) * shape.channels + channel;
        body.template add<width>(coefficients, plane * shape.inner + i % packs * width, sums);
      }
    } else {
      int step = kChannelThreads / plan.lanes;
#pragma unroll 4
      for (int64_t i = begin + row; i < end; i += step)
        body.template add<width>(coefficients, i * shape.channels + channel, sums);
    }
  }
  // partials [chunk, tile, sum, element]: an element is a channel of the tile, or the only one for planes.
  int elements = planes ? 1 : plan.lanes * width;
  C* own = partials + (static_cast<int64_t>(chunk) * plan.tiles + tile) * kSums * elements;
  for (int s = 0; s < kSums; ++s) {
    if (planes) {
      C value = 0;
      for (int k = 0; k < width; ++k) value += sums[s][k];
      value = add_across(value, 1, shared);
      if (threadIdx.x == 0) own[s] = value;
    } else {
#pragma unroll
      for (int k = 0; k < width; ++k) {
        C value = add_across(sums[s][k], plan.lanes, shared);
        if (threadIdx.x < plan.lanes) own[s * elements + lane * width + k] = value;
      }
    }
  }
  if (!is_last_block(counters + tile, static_cast<unsigned>(plan.chunks))) return;

  // Groups of threads take every n-th chunk, each thread one element at a time; then the groups are added up.
  __shared__ C groups[kChannelThreads * kSums];
  int group_size = 1;
  while (group_size < elements) group_size *= 2;
  int group = threadIdx.x / group_size, group_count = kChannelThreads / group_size, element = threadIdx.x % group_size;
  C total[kSums] = {};
  int64_t stride = static_cast<int64_t>(plan.tiles) * kSums * elements;
  if (element < elements) {
    const C* from = partials + static_cast<int64_t>(tile) * kSums * elements + element;
#pragma unroll 8
    for (int i = group; i < plan.chunks; i += group_count)
      for (int s = 0; s < kSums; ++s) total[s] += __ldcg(from + i * stride + s * elements);
  }
  for (int s = 0; s < kSums; ++s) groups[s * kChannelThreads + threadIdx.x] = total[s];
  __syncthreads();
  int finished = planes ? tile : tile * elements + element;
  if (group != 0 || element >= elements || finished >= shape.channels) return;
  for (int s = 0; s < kSums; ++s) {
    total[s] = 0;
    for (int g = 0; g < group_count; ++g) total[s] += groups[s * kChannelThreads + g * group_size + element];
  }
  body.finish(finished, total);
}

template <int width, class Body>
__global__ void __launch_bounds__(kChannelThreads) map_channels(Body body, ChannelShape shape, ChannelPlan plan) {
  bool planes = shape.inner != 1;
  int tile = blockIdx.x, chunk = blockIdx.y, lane = threadIdx.x % plan.lanes, row = threadIdx.x / plan.lanes;
  int channel = planes ? tile : (tile * plan.lanes + lane) * width;
  if (channel >= shape.channels) return;
  int64_t begin = chunk * plan.span, end = begin + plan.span < shape.outer ? begin + plan.span : shape.outer;
  auto coefficients = body.template lane<width>(channel, planes ? 0 : 1);
  if (planes) {
    int64_t packs = shape.inner / width, count = (end - begin) * packs;
    for (int64_t i = threadIdx.x; i < count; i += kChannelThreads) {
      int64_t plane = (begin + i / packs) * shape.channels + channel;
      body.template map<width>(coefficients, plane * shape.inner + i % packs * width);
    }
  } else {
    int step = kChannelThreads / plan.lanes;
#pragma unroll 4
    for (int64_t i = begin + row; i < end; i += step)
      body.template map<width>(coefficients, i * shape.channels + channel);
  }
}

template <class T, class Body>
void run_sum_channels(const Body& body, const ChannelShape& shape, const ChannelPlan& plan, void* workspace,
                      unsigned* counters, cudaStream_t stream) {
  dispatch_width<T>(plan.width, [&](auto width) {
    sum_channels<width.value>
        <<<dim3(static_cast<unsigned>(plan.tiles), static_cast<unsigned>(plan.chunks)), kChannelThreads, 0, stream>>>(
            body, shape, plan, static_cast<typename Body::C*>(workspace), counters);
  });
  check(cudaGetLastError(), "sum_channels");
}

template <class T, class Body>
void run_map_channels(const Body& body, const ChannelShape& shape, const ChannelPlan& plan, cudaStream_t stream) {
  dispatch_width<T>(plan.width, [&](auto width) {
    map_channels<width.value>
        <<<dim3(static_cast<unsigned>(plan.tiles), static_cast<unsigned>(plan.chunks)), kChannelThreads, 0, stream>>>(
            body, shape, plan);
  });
  check(cudaGetLastError(), "map_channels");
}

}  // namespace bonfire::cuda
