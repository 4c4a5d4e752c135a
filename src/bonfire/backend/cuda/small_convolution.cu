// Convolutions whose weights and image tiles fit into shared memory: few channels, small images. Libraries spend most
// of their time there on padding channels to what tensor cores like; here a block gathers what it needs as it lies.
//
// Forward, and the gradient of the input when the stride is 1 (a convolution of dy with the weights turned around): a
// block computes some rows of one image. It stages the image's rows with their border of zeros and all weights, and its
// warps multiply 16 pixels by 8 channels at a time with mma.m16n8k16. Element (pixel, k) of the first operand is
// staged[base(pixel) + offset(k)], k running over the window's rows, columns and channels.
//
// Gradient of the weights: a block takes some images and some of the window's elements; k runs over pixels. Blocks
// leave partial sums in the workspace, and a second kernel adds them in order.
#include "bonfire/backend/cuda/activation.cuh"
#include "bonfire/backend/cuda/candidate.h"
#include "bonfire/backend/cuda/numbers.cuh"
#include "bonfire/backend/cuda/tensor_core.cuh"
#include "bonfire/base/error.h"

namespace bonfire::cuda {

namespace {

using Element = __nv_bfloat16;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kMostTiles = 4;  // of 8 channels that a warp computes at once
constexpr int kMostOwn = 2;    // tiles of 16 elements of the window that a warp keeps in the gradient of the weights

struct Geometry {
  int height, width, channels;         // of the staged image
  int out_height, out_width, outputs;  // of what is computed from it
  int kernel_h, kernel_w;
  int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  int depth;         // kernel_h kernel_w channels
  int padded_depth;  // a multiple of 16
  int rows;          // of the result, per block
  int row_tiles;     // blocks per image
  int staged_height, staged_width;
  int splits;  // warps that share 16 pixels, each with a part of the depth (forward), or of the pixels (weights)
};

__host__ __device__ inline int weight_stride(const Geometry& g) { return g.padded_depth + 8; }  // apart in banks

// store(i, load(i)) for all i < count, spread over the block. A thread loads several before it stores the first: most
// of the time goes into waiting for memory.
template <class Load, class Store>
__device__ inline void stage(int count, const Load& load, const Store& store) {
  constexpr int kBatch = 8;
  for (int first = static_cast<int>(threadIdx.x); first < count; first += kThreads * kBatch) {
    decltype(load(0)) items[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k)
      if (first + k * kThreads < count) items[k] = load(first + k * kThreads);
#pragma unroll
    for (int k = 0; k < kBatch; ++k)
      if (first + k * kThreads < count) store(first + k * kThreads, items[k]);
  }
}

// Rows [first, first + staged_height) of image x (which may lie outside it: zeros) with the border left and right.
template <class Word>
__device__ inline void stage_words(const Geometry& g, const Element* x, int first, Element* staged) {
  constexpr int kPer = sizeof(Word) / sizeof(Element);
  int row_words = g.staged_width * g.channels / kPer, border = g.pad_w * g.channels / kPer;
  int image_words = g.width * g.channels / kPer;
  const Word* from = reinterpret_cast<const Word*>(x);
  stage(
      g.staged_height * row_words,
      [&](int i) {
        int column = i % row_words - border, y = first + i / row_words;
        bool inside = y >= 0 && y < g.height && column >= 0 && column < image_words;
        return inside ? from[static_cast<int64_t>(y) * image_words + column] : Word{};
      },
      [&](int i, const Word& word) { reinterpret_cast<Word*>(staged)[i] = word; });
}

__device__ inline void stage_image(const Geometry& g, const Element* x, int first, Element* staged) {
  if (g.channels % 4 == 0) {
    stage_words<uint2>(g, x, first, staged);
  } else if (g.channels % 2 == 0) {
    stage_words<unsigned>(g, x, first, staged);
  } else {
    stage_words<unsigned short>(g, x, first, staged);
  }
}

// offsets[k]: where element k of a window lies in the staged image, relative to its first.
__device__ inline int window_offset(const Geometry& g, int k) {
  if (k >= g.depth) return 0;
  int channel = k % g.channels, column = k / g.channels % g.kernel_w, row = k / g.channels / g.kernel_w;
  return (row * g.dilation_h * g.staged_width + column * g.dilation_w) * g.channels + channel;
}

// weights [channel of the result, padded depth] from [outputs, depth] as they lie, zeros around.
template <class Word>
__device__ inline void stage_rows(const Geometry& g, const Element* weight, int first, int tiles, Element* staged) {
  constexpr int kPer = sizeof(Word) / sizeof(Element);
  int words = weight_stride(g) / kPer, present = g.depth / kPer;
  const Word* from = reinterpret_cast<const Word*>(weight);
  stage(
      tiles * 8 * words,
      [&](int i) {
        int channel = first + i / words, word = i % words;
        return channel < g.outputs && word < present ? from[channel * present + word] : Word{};
      },
      [&](int i, const Word& word) { reinterpret_cast<Word*>(staged)[i] = word; });
}

__device__ inline void stage_weights(const Geometry& g, const Element* weight, int first, int tiles, Element* staged) {
  if (g.depth % 4 == 0) {
    stage_rows<uint2>(g, weight, first, tiles, staged);
  } else {
    stage_rows<unsigned short>(g, weight, first, tiles, staged);
  }
}

// The same for the gradient of the input: the weights are [g.channels, kernel_h, kernel_w, g.outputs] there, turned by
// half a circle; `per` outputs are read at once.
template <int per>
__device__ inline void stage_turned(const Geometry& g, const Element* weight, int first, int tiles, Element* staged) {
  int stride = weight_stride(g), window = g.kernel_h * g.kernel_w, packs = g.outputs / per;
  for (int i = static_cast<int>(threadIdx.x); i < tiles * stride; i += kThreads)
    reinterpret_cast<uint4*>(staged)[i] = uint4{};
  __syncthreads();
  stage(
      g.channels * window * packs, [&](int i) { return load_pack<per>(weight + i * per); },
      [&](int i, const Pack<Element, per>& pack) {
        int result = i % packs * per - first, run = i / packs;
        int to = (window - 1 - run % window) * g.channels + run / window;
#pragma unroll
        for (int k = 0; k < per; ++k)
          if (result + k >= 0 && result + k < tiles * 8) staged[(result + k) * stride + to] = pack.item[k];
      });
}

// dy of one image as [channel, pixel], `per` channels of a pixel read at once.
template <int per>
__device__ inline void stage_gradients(const Geometry& g, const Element* dy, int pixels, int first, int channels,
                                       int pixel_stride, Element* staged) {
  int packs = g.outputs / per;
  stage(
      pixels * packs, [&](int i) { return load_pack<per>(dy + static_cast<int64_t>(i) * per); },
      [&](int i, const Pack<Element, per>& pack) {
        int channel = i % packs * per - first, pixel = i / packs;
#pragma unroll
        for (int k = 0; k < per; ++k)
          if (channel + k >= 0 && channel + k < channels) staged[(channel + k) * pixel_stride + pixel] = pack.item[k];
      });
}

struct Epilogue {
  const void* bias;  // [outputs], or null
  bool bias_low;     // bf16, else f32
  int activation;

  template <bool kAny>
  __device__ float operator()(float value, int channel) const {
    if (bias != nullptr)
      value += bias_low ? load(static_cast<const Element*>(bias)[channel]) : static_cast<const float*>(bias)[channel];
    return activate<kAny>(activation, value);
  }
};

// One block: rows [tile · rows, …) of image n, channels [8 kTiles blockIdx.y, …).
template <int kTiles, bool kPairs, bool kAny>
__global__ void __launch_bounds__(kThreads)
    convolve(Geometry g, bool turned, const Element* x, const Element* weight, Epilogue epilogue, Element* y) {
  extern __shared__ __align__(16) unsigned char memory[];
  int stride = weight_stride(g);
  Element* staged = reinterpret_cast<Element*>(memory);
  Element* weights = staged + (g.staged_height * g.staged_width * g.channels + 7) / 8 * 8;
  int* offsets = reinterpret_cast<int*>(weights + kTiles * 8 * stride);  // [padded_depth]
  float* parts = reinterpret_cast<float*>(offsets + g.padded_depth);     // [kWarps, kTiles · 4, 32]
  int n = blockIdx.x / g.row_tiles, first_row = static_cast<int>(blockIdx.x) % g.row_tiles * g.rows;
  int first_channel = static_cast<int>(blockIdx.y) * kTiles * 8;
  stage_image(g, x + static_cast<int64_t>(n) * g.height * g.width * g.channels, first_row * g.stride_h - g.pad_h,
              staged);
  if (turned) {
    g.outputs % 4 == 0 ? stage_turned<4>(g, weight, first_channel, kTiles, weights)
                       : stage_turned<1>(g, weight, first_channel, kTiles, weights);
  } else {
    stage_weights(g, weight, first_channel, kTiles, weights);
  }
  for (int k = threadIdx.x; k < g.padded_depth; k += kThreads) offsets[k] = window_offset(g, k);
  __syncthreads();

  int rows = min(g.rows, g.out_height - first_row), pixels = rows * g.out_width;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, thread = lane % 4;
  int split = warp % g.splits, teams = kWarps / g.splits;
  int steps = g.padded_depth / 16, begin = steps * split / g.splits, end = steps * (split + 1) / g.splits;
  auto base_of = [&](int pixel) {
    int p = min(pixel, pixels - 1);
    return (p / g.out_width * g.stride_h * g.staged_width + p % g.out_width * g.stride_w) * g.channels;
  };
  for (int tile = warp / g.splits; tile * 16 < (pixels + 16 * teams - 1) / (16 * teams) * (16 * teams); tile += teams) {
    float sums[kTiles][4] = {};
    const Element *upper = staged + base_of(tile * 16 + group), *lower = staged + base_of(tile * 16 + group + 8);
    for (int step = begin; step < end; ++step) {
      int k = step * 16 + thread * 2;
      unsigned a[4];
      if constexpr (kPairs) {
        int near = offsets[k], far = offsets[k + 8];
        a[0] = *reinterpret_cast<const unsigned*>(upper + near);
        a[1] = *reinterpret_cast<const unsigned*>(lower + near);
        a[2] = *reinterpret_cast<const unsigned*>(upper + far);
        a[3] = *reinterpret_cast<const unsigned*>(lower + far);
      } else {
        a[0] = pack_pair(upper[offsets[k]], upper[offsets[k + 1]]);
        a[1] = pack_pair(lower[offsets[k]], lower[offsets[k + 1]]);
        a[2] = pack_pair(upper[offsets[k + 8]], upper[offsets[k + 9]]);
        a[3] = pack_pair(lower[offsets[k + 8]], lower[offsets[k + 9]]);
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const unsigned* b = reinterpret_cast<const unsigned*>(weights + (t * 8 + group) * stride + k);
        multiply_tile(sums[t], a, b[0], b[4]);
      }
    }
    if (g.splits > 1) {
      __syncthreads();  // every warp goes around the loop as often
      if (split > 0)
        for (int t = 0; t < kTiles * 4; ++t) parts[(warp * kTiles * 4 + t) * 32 + lane] = sums[t / 4][t % 4];
      __syncthreads();
      if (split > 0) continue;
      for (int other = 1; other < g.splits; ++other)
        for (int t = 0; t < kTiles * 4; ++t) sums[t / 4][t % 4] += parts[((warp + other) * kTiles * 4 + t) * 32 + lane];
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int pixel = tile * 16 + group + half * 8, channel = first_channel + t * 8 + thread * 2;
        if (pixel >= pixels || channel >= g.outputs) continue;
        int64_t at = ((static_cast<int64_t>(n) * g.out_height + first_row) * g.out_width + pixel) * g.outputs + channel;
        Element low = store<Element>(epilogue.template operator()<kAny>(sums[t][half * 2], channel));
        if (channel + 1 == g.outputs) {
          y[at] = low;
          continue;
        }
        Element high = store<Element>(epilogue.template operator()<kAny>(sums[t][half * 2 + 1], channel + 1));
        if (g.outputs % 2 == 0) {
          *reinterpret_cast<unsigned*>(y + at) = pack_pair(low, high);
        } else {
          y[at] = low;
          y[at + 1] = high;
        }
      }
    }
  }
}

// Partial sums of dweight [outputs, depth], one for each group of images: blockIdx.x is the group, blockIdx.y which
// part of the depth, blockIdx.z which channels. Tiles of 16 elements of the window by 8 channels.
template <int kTiles>
__global__ void __launch_bounds__(kThreads)
    weight_gradient(Geometry g, int images, int images_per_block, int depth_per_block, const Element* dy,
                    const Element* x, float* partials) {
  extern __shared__ __align__(16) unsigned char memory[];
  int pixels = g.out_height * g.out_width, padded_pixels = (pixels + 15) / 16 * 16, pixel_stride = padded_pixels + 8;
  Element* staged = reinterpret_cast<Element*>(memory);
  Element* gradients = staged + (g.staged_height * g.staged_width * g.channels + 7) / 8 * 8;  // [channel, pixel]
  int* bases = reinterpret_cast<int*>(gradients + kTiles * 8 * pixel_stride);                 // [padded_pixels]
  float* parts = reinterpret_cast<float*>(bases + padded_pixels);  // [kWarps, kTiles · 4, 32]
  int first_channel = static_cast<int>(blockIdx.z) * kTiles * 8,
      first_k = static_cast<int>(blockIdx.y) * depth_per_block;
  for (int p = threadIdx.x; p < padded_pixels; p += kThreads)
    bases[p] =
        p < pixels ? (p / g.out_width * g.stride_h * g.staged_width + p % g.out_width * g.stride_w) * g.channels : 0;
  for (int i = threadIdx.x; i < kTiles * 8 * pixel_stride; i += kThreads) gradients[i] = Element{};

  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, thread = lane % 4;
  int split = warp % g.splits, teams = kWarps / g.splits, steps = padded_pixels / 16;
  int begin = steps * split / g.splits, end = steps * (split + 1) / g.splits;
  float sums[kMostOwn][kTiles][4] = {};
  int upper[kMostOwn], lower[kMostOwn];
  for (int own = 0; own < kMostOwn; ++own) {
    int k = first_k + ((own * teams) + warp / g.splits) * 16 + group;
    upper[own] = window_offset(g, k);
    lower[own] = window_offset(g, k + 8);
  }
  int first_image = static_cast<int>(blockIdx.x) * images_per_block;
  for (int n = first_image; n < min(first_image + images_per_block, images); ++n) {
    __syncthreads();
    stage_image(g, x + static_cast<int64_t>(n) * g.height * g.width * g.channels, -g.pad_h, staged);
    const Element* from = dy + static_cast<int64_t>(n) * pixels * g.outputs;
    if (g.outputs % 4 == 0) {
      stage_gradients<4>(g, from, pixels, first_channel, kTiles * 8, pixel_stride, gradients);
    } else {
      stage_gradients<1>(g, from, pixels, first_channel, kTiles * 8, pixel_stride, gradients);
    }
    __syncthreads();
    for (int step = begin; step < end; ++step) {
      int p = step * 16 + thread * 2;
      const Element *p0 = staged + bases[p], *p1 = staged + bases[p + 1], *p8 = staged + bases[p + 8],
                    *p9 = staged + bases[p + 9];
      unsigned b[kTiles][2];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const unsigned* row = reinterpret_cast<const unsigned*>(gradients + (t * 8 + group) * pixel_stride + p);
        b[t][0] = row[0];
        b[t][1] = row[4];
      }
#pragma unroll
      for (int own = 0; own < kMostOwn; ++own) {
        if ((own * teams + warp / g.splits) * 16 >= depth_per_block) break;
        unsigned a[4] = {pack_pair(p0[upper[own]], p1[upper[own]]), pack_pair(p0[lower[own]], p1[lower[own]]),
                         pack_pair(p8[upper[own]], p9[upper[own]]), pack_pair(p8[lower[own]], p9[lower[own]])};
#pragma unroll
        for (int t = 0; t < kTiles; ++t) multiply_tile(sums[own][t], a, b[t][0], b[t][1]);
      }
    }
  }
  float* out = partials + static_cast<int64_t>(blockIdx.x) * g.outputs * g.depth;
#pragma unroll
  for (int own = 0; own < kMostOwn; ++own) {
    if (own * teams * 16 >= depth_per_block) break;  // the same for all warps
    if (g.splits > 1) {
      __syncthreads();
      for (int t = 0; t < kTiles * 4; ++t) parts[(warp * kTiles * 4 + t) * 32 + lane] = sums[own][t / 4][t % 4];
      __syncthreads();
      if (split > 0) continue;
      for (int other = 1; other < g.splits; ++other)
        for (int t = 0; t < kTiles * 4; ++t)
          sums[own][t / 4][t % 4] += parts[((warp + other) * kTiles * 4 + t) * 32 + lane];
    }
    int tile = (own * teams + warp / g.splits) * 16;
    if (tile >= depth_per_block) continue;
    for (int t = 0; t < kTiles * 4; ++t) {
      int k = first_k + tile + group + t % 4 / 2 * 8, channel = first_channel + t / 4 * 8 + thread * 2 + t % 2;
      if (k < g.depth && channel < g.outputs)
        out[static_cast<int64_t>(channel) * g.depth + k] = sums[own][t / 4][t % 4];
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    add_partials(const float* partials, int count, int elements, Element* result) {
  int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= elements) return;
  float sum = 0;
#pragma unroll 16
  for (int p = 0; p < count; ++p) sum += partials[static_cast<int64_t>(p) * elements + i];
  result[i] = store<Element>(sum);
}

// --- hosts ---------------------------------------------------------------------------------------------------------

Geometry geometry_of(const Shape& x, const Shape& y, const Shape& weight, const Attributes& a) {
  auto number = [&](const char* name, size_t i) { return static_cast<int>(a.list(name)[i]); };
  Geometry g{};
  g.height = static_cast<int>(x[2]), g.width = static_cast<int>(x[3]), g.channels = static_cast<int>(x[1]);
  g.out_height = static_cast<int>(y[2]), g.out_width = static_cast<int>(y[3]), g.outputs = static_cast<int>(y[1]);
  g.kernel_h = static_cast<int>(weight[2]), g.kernel_w = static_cast<int>(weight[3]);
  g.stride_h = number("stride", 0), g.stride_w = number("stride", 1);
  g.pad_h = number("padding", 0), g.pad_w = number("padding", 1);
  g.dilation_h = number("dilation", 0), g.dilation_w = number("dilation", 1);
  g.depth = g.kernel_h * g.kernel_w * g.channels;
  g.padded_depth = (g.depth + 15) / 16 * 16;
  g.staged_width = g.width + 2 * g.pad_w;
  g.rows = g.out_height;
  g.row_tiles = 1;
  g.splits = 1;
  return g;
}

int tiles_of(int outputs) { return std::min(kMostTiles, (outputs + 7) / 8); }

size_t staged_bytes(const Geometry& g) {
  auto elements =
      static_cast<size_t>(g.staged_height) * static_cast<size_t>(g.staged_width) * static_cast<size_t>(g.channels);
  return (elements + 7) / 8 * 8 * sizeof(Element);
}
size_t parts_bytes(int tiles) {
  return static_cast<size_t>(kWarps) * static_cast<size_t>(tiles) * 4 * 32 * sizeof(float);
}

size_t forward_bytes(const Geometry& g) {
  auto tiles = static_cast<size_t>(tiles_of(g.outputs));
  return staged_bytes(g) + tiles * 8 * static_cast<size_t>(weight_stride(g)) * sizeof(Element) +
         static_cast<size_t>(g.padded_depth) * sizeof(int) + parts_bytes(static_cast<int>(tiles));
}

// Cuts images into as many row tiles as give the device enough blocks, and the depth where pixels are few.
void cut_rows(Geometry& g, int images, int multiprocessors) {
  int groups = (g.outputs + tiles_of(g.outputs) * 8 - 1) / (tiles_of(g.outputs) * 8);
  int wanted = std::max(1, multiprocessors / std::max(1, images * groups));
  g.rows = std::max(1, (g.out_height + wanted - 1) / wanted);
  g.row_tiles = (g.out_height + g.rows - 1) / g.rows;
  g.staged_height = (g.rows - 1) * g.stride_h + (g.kernel_h - 1) * g.dilation_h + 1;
  int pixel_tiles = (g.rows * g.out_width + 15) / 16, steps = g.padded_depth / 16;
  while (g.splits < kWarps && g.splits * 2 * pixel_tiles <= kWarps && g.splits * 4 <= steps) g.splits *= 2;
}

template <class Kernel>
void allow_shared(Kernel* kernel, size_t bytes) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "cudaFuncSetAttribute");
}

template <class Body>
void dispatch_tiles(int tiles, Body&& body) {
  switch (tiles) {
    case 1: return body(std::integral_constant<int, 1>{});
    case 2: return body(std::integral_constant<int, 2>{});
    case 3: return body(std::integral_constant<int, 3>{});
    default: return body(std::integral_constant<int, kMostTiles>{});
  }
}

constexpr size_t kMostShared = 100 << 10;  // bytes: two blocks of a multiprocessor

struct Forward {
  Geometry g;
  bool turned;
  int images;
  int activation;
  bool bias_low;

  // Calls body(kernel) with the form of the kernel that fits.
  template <class Body>
  void with_kernel(Body&& body) const {
    dispatch_tiles(tiles_of(g.outputs), [&](auto count) {
      bool even = g.channels % 2 == 0, any = !is_plain_activation(activation);
      if (even && any) body(convolve<count.value, true, true>);
      if (even && !any) body(convolve<count.value, true, false>);
      if (!even && any) body(convolve<count.value, false, true>);
      if (!even && !any) body(convolve<count.value, false, false>);
    });
  }

  void run(const void* x, const void* weight, const void* bias, void* y, cudaStream_t stream) const {
    int channels = tiles_of(g.outputs) * 8;
    dim3 blocks(static_cast<unsigned>(images * g.row_tiles),
                static_cast<unsigned>((g.outputs + channels - 1) / channels));
    with_kernel([&](auto* kernel) {
      kernel<<<blocks, kThreads, forward_bytes(g), stream>>>(g, turned, static_cast<const Element*>(x),
                                                             static_cast<const Element*>(weight),
                                                             {bias, bias_low, activation}, static_cast<Element*>(y));
    });
    check(cudaGetLastError(), "convolve");
  }
};

void build_forward(Candidate& candidate, const KernelRequest& request, const Forward& what, bool has_bias) {
  build_on_device(candidate, request, [=] {
    what.with_kernel([&](auto* kernel) { allow_shared(kernel, forward_bytes(what.g)); });
    auto body = [=](const Run& run) {
      what.run(run.inputs[0], run.inputs[1], has_bias ? run.inputs[2] : nullptr, run.outputs[0], stream_of(run));
    };
    return std::make_unique<FunctionKernel<decltype(body)>>(body);
  });
}

bool is_small(const GraphNode& node, const Shape& weight) {
  constexpr int64_t kMostChannels = 64;
  return node.outputs[0].dtype == DType::bf16 && node.attributes.integer("groups") == 1 && weight.count() > 0 &&
         weight[0] <= kMostChannels && weight[1] <= kMostChannels && node.inputs[0].spec().shape.count() > 0;
}

Candidate image_candidate(const KernelRequest& request) {
  Candidate candidate = row_major_candidate(request, "small");
  for (size_t i = 0; i < request.node.inputs.size(); ++i)
    if (request.node.inputs[i].spec().shape.rank() == 4)
      candidate.input_layouts[i] =
          unless_same(request.node.inputs[i].spec().shape, channels_last(), request.arriving[i]);
  candidate.output_layouts[0] = channels_last();
  return candidate;
}

std::vector<Candidate> forward(const KernelRequest& request) {
  const GraphNode& node = request.node;
  const Shape &x = node.inputs[0].spec().shape, &weight = node.inputs[1].spec().shape;
  bool fused = node.attributes.has("activation");
  if (!is_small(node, weight) || (fused && node.attributes.flag("has_residual"))) return {};
  Geometry g = geometry_of(x, node.outputs[0].shape, weight, node.attributes);
  cut_rows(g, static_cast<int>(x[0]), traits_of(node.device().index).multiprocessors);
  if (forward_bytes(g) > kMostShared) return {};
  bool has_bias = fused && node.attributes.flag("has_bias");
  bool low = has_bias && node.inputs[2].spec().dtype == DType::bf16;
  int activation = fused ? static_cast<int>(node.attributes.integer("activation")) : -1;
  Candidate candidate = image_candidate(request);
  if (has_bias) candidate.input_layouts[2] = {};
  build_forward(candidate, request, {g, false, static_cast<int>(x[0]), activation, low}, has_bias);
  return {std::move(candidate)};
}

// dx is the convolution of dy, with a border of kernel − 1 − padding, with the weights turned around.
std::vector<Candidate> input_gradient(const KernelRequest& request) {
  const GraphNode& node = request.node;
  const Shape &dy = node.inputs[0].spec().shape, &weight = node.inputs[1].spec().shape, &dx = node.outputs[0].shape;
  if (!is_small(node, weight)) return {};
  Geometry g = geometry_of(dy, dx, weight, node.attributes);
  if (g.stride_h != 1 || g.stride_w != 1) return {};
  g.pad_h = (g.kernel_h - 1) * g.dilation_h - g.pad_h;
  g.pad_w = (g.kernel_w - 1) * g.dilation_w - g.pad_w;
  if (g.pad_h < 0 || g.pad_w < 0) return {};
  g.staged_width = g.width + 2 * g.pad_w;
  cut_rows(g, static_cast<int>(dy[0]), traits_of(node.device().index).multiprocessors);
  if (forward_bytes(g) > kMostShared) return {};
  Candidate candidate = image_candidate(request);
  build_forward(candidate, request, {g, true, static_cast<int>(dy[0]), -1, false}, false);
  return {std::move(candidate)};
}

std::vector<Candidate> weight_gradients(const KernelRequest& request) {
  const GraphNode& node = request.node;
  const Shape &dy = node.inputs[0].spec().shape, &x = node.inputs[1].spec().shape, &weight = node.outputs[0].shape;
  if (!is_small(node, weight)) return {};
  Geometry g = geometry_of(x, dy, weight, node.attributes);
  g.staged_height = g.height + 2 * g.pad_h;
  int tiles = tiles_of(g.outputs), pixels = (g.out_height * g.out_width + 15) / 16 * 16;
  size_t bytes = staged_bytes(g) + static_cast<size_t>(tiles * 8 * (pixels + 8)) * sizeof(Element) +
                 static_cast<size_t>(pixels) * sizeof(int) + parts_bytes(tiles);
  if (bytes > kMostShared) return {};
  constexpr int kDepth = 16 * kWarps * kMostOwn;  // of a block
  int depth_parts = (g.padded_depth + kDepth - 1) / kDepth, depth_tiles = std::min(g.padded_depth, kDepth) / 16;
  while (g.splits < kWarps && g.splits * 2 * depth_tiles <= kWarps && g.splits * 2 * 16 <= pixels) g.splits *= 2;
  int channel_parts = (g.outputs + tiles * 8 - 1) / (tiles * 8), images = static_cast<int>(x[0]);
  int wanted = std::max(1, traits_of(node.device().index).multiprocessors / (depth_parts * channel_parts));
  int per_block = std::max(1, (images + wanted - 1) / wanted), groups = (images + per_block - 1) / per_block;
  int elements = g.outputs * g.depth;
  Candidate candidate = image_candidate(request);
  candidate.workspace_bytes = static_cast<size_t>(groups) * static_cast<size_t>(elements) * sizeof(float);
  auto body = [=](const Run& run) {
    dim3 blocks(static_cast<unsigned>(groups), static_cast<unsigned>(depth_parts),
                static_cast<unsigned>(channel_parts));
    auto* partials = static_cast<float*>(run.workspace);
    dispatch_tiles(tiles, [&](auto count) {
      weight_gradient<count.value>
          <<<blocks, kThreads, bytes, stream_of(run)>>>(g, images, per_block, std::min(kDepth, g.padded_depth),
                                                        run.input<Element>(0), run.input<Element>(1), partials);
    });
    add_partials<<<blocks_for(elements, kThreads), kThreads, 0, stream_of(run)>>>(partials, groups, elements,
                                                                                  run.output<Element>(0));
    check(cudaGetLastError(), "weight_gradient");
  };
  build_on_device(candidate, request, [=] {
    dispatch_tiles(tiles, [&](auto count) { allow_shared(weight_gradient<count.value>, bytes); });
    return std::make_unique<FunctionKernel<decltype(body)>>(body);
  });
  return {std::move(candidate)};
}

const bool registered = register_kernel("conv2d", DeviceType::cuda, forward) &&
                        register_kernel("conv2d_bias_act", DeviceType::cuda, forward) &&
                        register_kernel("conv2d_input_gradient", DeviceType::cuda, input_gradient) &&
                        register_kernel("conv2d_weight_gradient", DeviceType::cuda, weight_gradients);

}  // namespace

}  // namespace bonfire::cuda
