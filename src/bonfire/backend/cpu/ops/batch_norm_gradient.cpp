// Gradients of batch normalisation, alone or fused with a residual and an activation: sums over each channel, then dx.
//
// dz is the gradient before the activation. Without a residual it is rebuilt from x, which is read anyway; with one it
// is taken from the forward result y.

#include "bonfire/backend/cpu/ops/batch_norm.h"
#include "bonfire/backend/cpu/ops/channel_loops.h"
#include "bonfire/backend/cpu/ops/fused_activation.h"
#include "bonfire/backend/cpu/simd/every_instruction_set.h"

namespace bonfire::cpu {

namespace {

// A node of any of the four ops, and where its inputs are. All begin with dy, x, mean, variance.
struct Job {
  ChannelExtent extent;
  double eps = 0;
  int64_t activation = -1;
  double count = 0;                               // elements in each sum
  int weight = -1, bias = -1, sums = -1, y = -1;  // input numbers; -1: there is none
  DType weight_type{}, bias_type{};

  Job(const GraphNode& node, const ChannelExtent& channel_extent) : extent(channel_extent) {
    const Attributes& a = node.attributes;
    bool fused = a.has("activation"), apply = a.has("count");
    eps = a.number("eps");
    if (fused) activation = a.integer("activation");
    if (fused || apply) weight = 4;
    if (fused) bias = 5;
    if (apply) sums = fused ? 6 : 5;
    if (fused && a.flag("has_residual")) y = static_cast<int>(node.inputs.size()) - 1;
    if (apply) count = static_cast<double>(a.integer("count") < 0 ? extent.per_channel() : a.integer("count"));
    if (weight >= 0) weight_type = node.inputs[weight].spec().dtype;
    if (bias >= 0) bias_type = node.inputs[bias].spec().dtype;
  }

  ChannelNumbers weight_of(const Run& run) const { return numbers(run, weight, weight_type); }
  ChannelNumbers bias_of(const Run& run) const { return numbers(run, bias, bias_type); }

 private:
  static ChannelNumbers numbers(const Run& run, int input, DType dtype) {
    return {input < 0 ? nullptr : run.inputs[input], dtype};
  }
};

// Rows of the table of numbers per channel.
// NOLINTNEXTLINE(readability-identifier-naming): constants, whatever their form
enum Row : int { kMean, kScale, kBias, kMeanOfDz, kSlope, kRows };

// Calls body with a function (element, numbers of its channel) → dz.
template <class T, class Body>
void with_dz(const Job& job, const Run& run, const Body& body) {
  using Acc = Compute<T>;
  const T *dy = run.input<T>(0), *x = run.input<T>(1);
  with_activation(job.activation, [&](const auto& activation) {
    if (job.y >= 0) {
      const T* y = run.input<T>(job.y);
      body([=](int64_t i, const auto&) {
        return activation.gradient_from_output(static_cast<Acc>(dy[i]), static_cast<Acc>(y[i]));
      });
    } else {
      body([=](int64_t i, const auto& channel) {
        Acc z = (static_cast<Acc>(x[i]) - channel[kMean]) * channel[kScale] + channel[kBias];
        return activation.gradient(static_cast<Acc>(dy[i]), z);
      });
    }
  });
}

template <class T>
void run_sums(const Job& job, const Run& run) {
  using Acc = Compute<T>;
  int64_t channels = job.extent.channels;
  const Acc *mean = run.input<Acc>(2), *variance = run.input<Acc>(3);
  Acc* table = static_cast<Acc*>(run.workspace);  // [3, channels], the rest of kRows unused
  fill_affine(channels, job.eps, mean, variance, job.weight_of(run), job.bias_of(run), table);
  void* parts = static_cast<double*>(run.workspace) + kRows * channels;
  const T* x = run.input<T>(1);
  Acc *sum_dz = run.output<Acc>(0), *sum_dz_xhat = run.output<Acc>(1);
  with_dz<T>(job, run, [&](const auto& dz) {
    sum_channels<3>(
        job.extent, table, parts, *run.threads,
        [=](int64_t i, const auto& channel) {
          Acc value = dz(i, channel);
          return PairOfSums<Acc>{value, value * (static_cast<Acc>(x[i]) - channel[kMean])};
        },
        [=, &job](int64_t c, double sum, double sum_centred) {
          sum_dz[c] = static_cast<Acc>(sum);
          sum_dz_xhat[c] = static_cast<Acc>(sum_centred / std::sqrt(static_cast<double>(variance[c]) + job.eps));
        });
  });
}

template <class T>
void run_apply(const Job& job, const Run& run) {
  using Acc = Compute<T>;
  int64_t channels = job.extent.channels;
  const Acc *mean = run.input<Acc>(2), *variance = run.input<Acc>(3);
  const Acc *sum_dz = run.input<Acc>(job.sums), *sum_dz_xhat = run.input<Acc>(job.sums + 1);
  Acc* table = static_cast<Acc*>(run.workspace);  // [5, channels]
  fill_affine(channels, job.eps, mean, variance, job.weight_of(run), job.bias_of(run), table);
  for (int64_t c = 0; c < channels; ++c) {
    double deviation = std::sqrt(static_cast<double>(variance[c]) + job.eps);
    table[kMeanOfDz * channels + c] = static_cast<Acc>(static_cast<double>(sum_dz[c]) / job.count);
    table[kSlope * channels + c] = static_cast<Acc>(static_cast<double>(sum_dz_xhat[c]) / deviation / job.count);
  }
  const T* x = run.input<T>(1);
  T* dx = run.output<T>(0);
  with_dz<T>(job, run, [&](const auto& dz) {
    auto gradient = [=](int64_t i, const auto& channel, Acc value) {
      Acc centred = static_cast<Acc>(x[i]) - channel[kMean];
      return static_cast<T>(channel[kScale] * (value - channel[kMeanOfDz] - centred * channel[kSlope]));
    };
    if (run.outputs.size() == 1) {
      for_each_element<kRows>(job.extent, table, *run.threads,
                              [=](int64_t i, const auto& channel) { dx[i] = gradient(i, channel, dz(i, channel)); });
      return;
    }
    T* dresidual = run.output<T>(1);
    for_each_element<kRows>(job.extent, table, *run.threads, [=](int64_t i, const auto& channel) {
      Acc value = dz(i, channel);
      T result = gradient(i, channel, value);
      dresidual[i] = static_cast<T>(value);
      dx[i] = result;
    });
  });
}

struct FillSums {
  template <class T>
  void operator()(TypeTag<T>, const GraphNode& node, const ChannelExtent& extent, Candidate& candidate) const {
    candidate.workspace_bytes =
        static_cast<size_t>(extent.channels) * kRows * sizeof(double) + sum_channels_bytes(extent);
    set_body(candidate, [job = Job(node, extent)](const Run& run) { run_sums<T>(job, run); });
  }
};

struct FillApply {
  template <class T>
  void operator()(TypeTag<T>, const GraphNode& node, const ChannelExtent& extent, Candidate& candidate) const {
    candidate.workspace_bytes = static_cast<size_t>(extent.channels) * kRows * sizeof(double);
    candidate.in_place = {{0, 1}};
    candidate.in_place.push_back({node.outputs.size() > 1 ? 1 : 0, 0});
    set_body(candidate, [job = Job(node, extent)](const Run& run) { run_apply<T>(job, run); });
  }
};

std::vector<Candidate> sums_candidates(const KernelRequest& request) {
  return batch_norm_candidates(request, 1, FillSums());
}
std::vector<Candidate> apply_candidates(const KernelRequest& request) {
  return batch_norm_candidates(request, 1, FillApply());
}

}  // namespace

BONFIRE_CPU_KERNELS(batch_norm_gradient, {"batch_norm_gradient_sums", sums_candidates},
                    {"batch_norm_act_gradient_sums", sums_candidates}, {"batch_norm_gradient_apply", apply_candidates},
                    {"batch_norm_act_gradient_apply", apply_candidates})

}  // namespace bonfire::cpu
