// Dropout and random tensors: the same numbers as on the CPU, from base/random.h (normal ones to their last bit but
// one, since logarithm and cosine are rounded by each library in its own way).
#include "bonfire/backend/cuda/candidate.h"
#include "bonfire/backend/cuda/numbers.cuh"
#include "bonfire/base/random.h"
#include "bonfire/ops/random_places.h"

namespace bonfire::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWords = 4;  // of one block of the generator: what a thread computes

// key: seed, step, rank, world.
template <class T>
__global__ void __launch_bounds__(kThreads)
    dropout(const T* x, const uint64_t* key, uint64_t number, float p, Compute<T> scale,
            const __grid_constant__ RandomPlaces places, T* y) {
  int64_t block = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (block * kWords >= places.count) return;
  const uint64_t stream = random_stream(key[1], number), rank = key[2], world = key[3];
  const bool whole = places.contiguous && rank == 0 && world == 1 && places.first_row + places.base == 0;
  RandomBlock words{};
  if (whole) words = philox(key[0], stream, static_cast<uint64_t>(block));
  for (int w = 0; w < kWords; ++w) {
    int64_t i = block * kWords + w;
    if (i >= places.count) return;
    float drawn = whole ? uniform_from_bits(words.word[w]) : uniform_at(key[0], stream, places.at(i, rank, world));
    y[i] = drawn >= p ? store<T>(load(x[i]) * scale) : store<T>(Compute<T>(0));
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    uniform(const uint64_t* key, uint64_t number, const __grid_constant__ RandomPlaces places, T* y) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < places.count) y[i] = store<T>(uniform_at(key[0], random_stream(key[1], number), places.at(i, 0, 1)));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    normal(const uint64_t* key, uint64_t number, const __grid_constant__ RandomPlaces places, T* y) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < places.count) y[i] = store<T>(normal_at(key[0], random_stream(key[1], number), places.at(i, 0, 1)));
}

std::vector<Candidate> dropout_candidates(const KernelRequest& request) {
  const TensorSpec& y = request.node.outputs[0];
  if (!has_kernels(y.dtype)) return {};
  double p = request.node.attributes.number("p");
  auto number = static_cast<uint64_t>(request.node.attributes.integer("number"));
  const RandomPlaces places = RandomPlaces::of(y.shape, request.node.attributes);
  std::vector<Candidate> list = one_candidate(request, [=, dtype = y.dtype](const Run& run) {
    if (places.count == 0) return;
    dispatch_floating(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      dropout<T><<<blocks_for(places.count, kThreads * kWords), kThreads, 0, stream_of(run)>>>(
          run.input<T>(0), run.input<uint64_t>(1), number, static_cast<float>(p), static_cast<Compute<T>>(1 / (1 - p)),
          places, run.output<T>(0));
    });
    check(cudaGetLastError(), "dropout");
  });
  list[0].in_place = {{0, 0}};
  return list;
}

std::vector<Candidate> uniform_candidates(const KernelRequest& request) {
  const TensorSpec& y = request.node.outputs[0];
  if (!has_kernels(y.dtype)) return {};
  auto number = static_cast<uint64_t>(request.node.attributes.integer("number"));
  const RandomPlaces places = RandomPlaces::of(y.shape, request.node.attributes);
  return one_candidate(request, [=, dtype = y.dtype](const Run& run) {
    if (places.count == 0) return;
    dispatch_floating(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      uniform<T><<<blocks_for(places.count, kThreads), kThreads, 0, stream_of(run)>>>(run.input<uint64_t>(0), number,
                                                                                      places, run.output<T>(0));
    });
    check(cudaGetLastError(), "uniform_random");
  });
}

std::vector<Candidate> normal_candidates(const KernelRequest& request) {
  const TensorSpec& y = request.node.outputs[0];
  if (!has_kernels(y.dtype)) return {};
  auto number = static_cast<uint64_t>(request.node.attributes.integer("number"));
  const RandomPlaces places = RandomPlaces::of(y.shape, request.node.attributes);
  return one_candidate(request, [=, dtype = y.dtype](const Run& run) {
    if (places.count == 0) return;
    dispatch_floating(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      normal<T><<<blocks_for(places.count, kThreads), kThreads, 0, stream_of(run)>>>(run.input<uint64_t>(0), number,
                                                                                     places, run.output<T>(0));
    });
    check(cudaGetLastError(), "normal_random");
  });
}

const bool registered = register_kernel("dropout", DeviceType::cuda, dropout_candidates) &&
                        register_kernel("uniform_random", DeviceType::cuda, uniform_candidates) &&
                        register_kernel("normal_random", DeviceType::cuda, normal_candidates);

}  // namespace

}  // namespace bonfire::cuda
