// What batch normalisation over several ranks exchanges (ops/sync_batch_norm.h): a few numbers a channel.
#include "bonfire/backend/cuda/candidate.h"
#include "bonfire/backend/cuda/numbers.cuh"

namespace bonfire::cuda {

namespace {

constexpr int kThreads = 256;

__device__ inline int channel() { return static_cast<int>(blockIdx.x * kThreads + threadIdx.x); }

template <class S>
__global__ void __launch_bounds__(kThreads)
    moments(const S* mean, const S* variance, double count, int channels, double* y) {
  const int c = channel();
  if (c == 0) y[2 * channels] = count;
  if (c >= channels) return;
  const double m = load(mean[c]);
  y[c] = count * m;
  y[channels + c] = count * (static_cast<double>(load(variance[c])) + m * m);
}

template <class S>
__global__ void __launch_bounds__(kThreads)
    joint_statistics(const double* moments, int channels, S* mean, S* variance, S* unbiased) {
  const int c = channel();
  if (c >= channels) return;
  const double count = moments[2 * channels], divisor = fmax(count, 1.0), unbias = count > 1 ? count / (count - 1) : 1;
  const double m = moments[c] / divisor, v = fmax(0.0, moments[channels + c] / divisor - m * m);
  mean[c] = store<S>(static_cast<float>(m));
  variance[c] = store<S>(static_cast<float>(v));
  unbiased[c] = store<S>(static_cast<float>(v * unbias));
}

template <class S>
__global__ void __launch_bounds__(kThreads)
    gradient_moments(const S* sum_dy, const S* sum_dy_xhat, int channels, double* y) {
  const int c = channel();
  if (c >= channels) return;
  y[c] = load(sum_dy[c]);
  y[channels + c] = load(sum_dy_xhat[c]);
}

template <class S>
__global__ void __launch_bounds__(kThreads)
    joint_sums(const double* sums, const double* moments, double count, int channels, S* sum_dy, S* sum_dy_xhat) {
  const int c = channel();
  if (c >= channels) return;
  const double share = count / fmax(moments[2 * channels], 1.0);
  sum_dy[c] = store<S>(static_cast<float>(share * sums[c]));
  sum_dy_xhat[c] = store<S>(static_cast<float>(share * sums[channels + c]));
}

// One candidate that calls body(TypeTag<S>{}, run, blocks, channels), S and the channels being those of `statistic`.
template <class Body>
std::vector<Candidate> by_channel(const KernelRequest& request, const TensorSpec& statistic, Body body) {
  if (!has_kernels(statistic.dtype)) return {};
  const auto channels = static_cast<int>(statistic.shape[0]);
  return one_candidate(request, [=, dtype = statistic.dtype](const Run& run) {
    if (channels == 0) return;
    dispatch_floating(dtype, [&](auto tag) { body(tag, run, blocks_for(channels, kThreads), channels); });
    check(cudaGetLastError(), "sync_batch_norm");
  });
}

double count_of(const KernelRequest& request) { return static_cast<double>(request.node.attributes.integer("count")); }

std::vector<Candidate> moments_candidates(const KernelRequest& request) {
  auto body = [count = count_of(request)](auto tag, const Run& run, unsigned blocks, int channels) {
    using S = typename decltype(tag)::type;
    moments<S><<<blocks, kThreads, 0, stream_of(run)>>>(run.input<S>(0), run.input<S>(1), count, channels,
                                                        run.output<double>());
  };
  return by_channel(request, request.node.inputs[0].spec(), body);
}

std::vector<Candidate> joint_statistics_candidates(const KernelRequest& request) {
  auto body = [](auto tag, const Run& run, unsigned blocks, int channels) {
    using S = typename decltype(tag)::type;
    joint_statistics<S><<<blocks, kThreads, 0, stream_of(run)>>>(run.input<double>(0), channels, run.output<S>(0),
                                                                 run.output<S>(1), run.output<S>(2));
  };
  return by_channel(request, request.node.outputs[0], body);
}

std::vector<Candidate> gradient_moments_candidates(const KernelRequest& request) {
  auto body = [](auto tag, const Run& run, unsigned blocks, int channels) {
    using S = typename decltype(tag)::type;
    gradient_moments<S>
        <<<blocks, kThreads, 0, stream_of(run)>>>(run.input<S>(0), run.input<S>(1), channels, run.output<double>());
  };
  return by_channel(request, request.node.inputs[0].spec(), body);
}

std::vector<Candidate> joint_sums_candidates(const KernelRequest& request) {
  auto body = [count = count_of(request)](auto tag, const Run& run, unsigned blocks, int channels) {
    using S = typename decltype(tag)::type;
    joint_sums<S><<<blocks, kThreads, 0, stream_of(run)>>>(run.input<double>(0), run.input<double>(1), count, channels,
                                                           run.output<S>(0), run.output<S>(1));
  };
  return by_channel(request, request.node.outputs[0], body);
}

const bool registered = register_kernel("batch_norm_moments", DeviceType::cuda, moments_candidates) &&
                        register_kernel("batch_norm_joint_statistics", DeviceType::cuda, joint_statistics_candidates) &&
                        register_kernel("batch_norm_gradient_moments", DeviceType::cuda, gradient_moments_candidates) &&
                        register_kernel("batch_norm_joint_sums", DeviceType::cuda, joint_sums_candidates);

}  // namespace

}  // namespace bonfire::cuda
