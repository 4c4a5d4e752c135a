// What batch normalisation over several ranks exchanges (ops/sync_batch_norm.h): a few numbers a channel.

#include "bonfire/backend/cpu/simd/floating.h"

namespace bonfire::cpu {
namespace {

std::vector<Candidate> moments_candidates(const KernelRequest& request) {
  const TensorSpec& statistic = request.node.inputs[0].spec();
  return for_floating(statistic.dtype, [&](auto tag) {
    using S = typename decltype(tag)::type;
    const auto count = static_cast<double>(request.node.attributes.integer("count"));
    return one_candidate(request, [count, channels = statistic.shape[0]](const Run& run) {
      const S *mean = run.input<S>(0), *variance = run.input<S>(1);
      auto* moments = run.output<double>();
      for (int64_t c = 0; c < channels; ++c) {
        const auto m = static_cast<double>(mean[c]);
        moments[c] = count * m;
        moments[channels + c] = count * (static_cast<double>(variance[c]) + m * m);
      }
      moments[2 * channels] = count;
    });
  });
}

std::vector<Candidate> joint_statistics_candidates(const KernelRequest& request) {
  const TensorSpec& statistic = request.node.outputs[0];
  return for_floating(statistic.dtype, [&](auto tag) {
    using S = typename decltype(tag)::type;
    return one_candidate(request, [channels = statistic.shape[0]](const Run& run) {
      const auto* moments = run.input<double>(0);
      S *mean = run.output<S>(0), *variance = run.output<S>(1), *unbiased = run.output<S>(2);
      const double count = moments[2 * channels], divisor = std::max(count, 1.0);
      const double unbias = count > 1 ? count / (count - 1) : 1;
      for (int64_t c = 0; c < channels; ++c) {
        const double m = moments[c] / divisor;
        const double v = std::max(0.0, moments[channels + c] / divisor - m * m);
        mean[c] = static_cast<S>(m);
        variance[c] = static_cast<S>(v);
        unbiased[c] = static_cast<S>(v * unbias);
      }
    });
  });
}

std::vector<Candidate> gradient_moments_candidates(const KernelRequest& request) {
  const TensorSpec& sum = request.node.inputs[0].spec();
  return for_floating(sum.dtype, [&](auto tag) {
    using S = typename decltype(tag)::type;
    return one_candidate(request, [channels = sum.shape[0]](const Run& run) {
      std::copy_n(run.input<S>(0), channels, run.output<double>());
      std::copy_n(run.input<S>(1), channels, run.output<double>() + channels);
    });
  });
}

std::vector<Candidate> joint_sums_candidates(const KernelRequest& request) {
  const TensorSpec& sum = request.node.outputs[0];
  return for_floating(sum.dtype, [&](auto tag) {
    using S = typename decltype(tag)::type;
    const auto count = static_cast<double>(request.node.attributes.integer("count"));
    return one_candidate(request, [count, channels = sum.shape[0]](const Run& run) {
      const double *sums = run.input<double>(0), *moments = run.input<double>(1);
      const double share = count / std::max(moments[2 * channels], 1.0);
      for (int64_t c = 0; c < channels; ++c) {
        run.output<S>(0)[c] = static_cast<S>(share * sums[c]);
        run.output<S>(1)[c] = static_cast<S>(share * sums[channels + c]);
      }
    });
  });
}

[[maybe_unused]] const bool registered[] = {
    register_kernel("batch_norm_moments", DeviceType::cpu, moments_candidates),
    register_kernel("batch_norm_joint_statistics", DeviceType::cpu, joint_statistics_candidates),
    register_kernel("batch_norm_gradient_moments", DeviceType::cpu, gradient_moments_candidates),
    register_kernel("batch_norm_joint_sums", DeviceType::cpu, joint_sums_candidates),
};

}  // namespace
}  // namespace bonfire::cpu
