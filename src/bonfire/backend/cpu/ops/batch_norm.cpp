// Batch normalisation: statistics, normalisation (with residual and activation) and the update of running statistics.
// Its gradients are in batch_norm_gradient.cpp.

#include "bonfire/backend/cpu/ops/batch_norm.h"

#include <cmath>

#include "bonfire/backend/cpu/ops/channel_loops.h"
#include "bonfire/backend/cpu/ops/fused_activation.h"
#include "bonfire/backend/cpu/simd/every_instruction_set.h"

namespace bonfire::cpu {

namespace {

// Mean and sum of squared deviations of the elements seen so far. Blocks small enough for the first-level cache are
// gone over twice (mean, then deviations from it) and merged by Chan's formula, so memory is read once and a mean far
// from zero does no harm.
template <class T>
class Statistics {
 public:
  using Acc = Compute<T>;

  Statistics(const ChannelExtent& extent, void* workspace) : extent_(extent), parts_(extent.parts()) {
    mean_ = static_cast<double*>(workspace);
    squares_ = mean_ + parts_ * extent.channels;
    scratch_ = reinterpret_cast<Acc*>(squares_ + parts_ * extent.channels);
  }

  void run(const T* x, ThreadPool& threads, Acc* mean, Acc* variance) {
    if (extent_.rows()) {
      threads.run(parts_, [&](int64_t part) { sum_rows(x, part); });
    } else {
      threads.run(parts_ * extent_.channels,
                  [&](int64_t task) { sum_planes(x, task / extent_.channels, task % extent_.channels); });
    }
    merge_parts();
    for (int64_t c = 0; c < extent_.channels; ++c) {
      mean[c] = static_cast<Acc>(mean_[c]);
      variance[c] = extent_.per_channel() > 0
                        ? static_cast<Acc>(squares_[c] / static_cast<double>(extent_.per_channel()))
                        : Acc(0);
    }
  }

 private:
  struct Moments {
    double count, mean, squares;

    void merge(const Moments& other) {
      double sum = count + other.count;
      if (sum == 0) return;
      double delta = other.mean - mean;
      mean += delta * (other.count / sum);
      squares += other.squares + delta * delta * (count * other.count / sum);
      count = sum;
    }
  };

  int64_t begin(int64_t part) const { return extent_.outer * part / parts_; }

  // Into the first part.
  void merge_parts() {
    double seen = static_cast<double>(begin(1) * extent_.inner);
    for (int64_t part = 1; part < parts_; ++part) {
      const double added = static_cast<double>((begin(part + 1) - begin(part)) * extent_.inner);
      merge_channels(seen, added, mean_ + part * extent_.channels, squares_ + part * extent_.channels, mean_, squares_);
      seen += added;
    }
  }

  // The moments of `added` elements of each channel join those of the `seen` ones.
  template <class From>
  void merge_channels(double seen, double added, const From* from_mean, const From* from_squares, double* mean,
                      double* squares) const {
    const double share = added / (seen + added), weight = seen * share;
#pragma GCC ivdep
    for (int64_t c = 0; c < extent_.channels; ++c) {
      double delta = static_cast<double>(from_mean[c]) - mean[c];
      mean[c] += delta * share;
      squares[c] += static_cast<double>(from_squares[c]) + delta * delta * weight;
    }
  }

  void sum_planes(const T* x, int64_t part, int64_t channel) {
    int64_t inner = extent_.inner, step = std::max<int64_t>(1, 2048 / inner);  // planes in a block
    Moments total{};
    for (int64_t n = begin(part); n < begin(part + 1); n += step) {
      int64_t last = std::min(begin(part + 1), n + step);
      auto sum_block = [&](const auto& term) {
        double sum = 0;
        for (int64_t plane = n; plane < last; ++plane) {
          const T* values = x + (plane * extent_.channels + channel) * inner;
          sum += static_cast<double>(row_sum<Acc>(inner, [&](int64_t i) { return term(static_cast<Acc>(values[i])); }));
        }
        return sum;
      };
      double count = static_cast<double>((last - n) * inner);
      double mean = sum_block([](Acc value) { return value; }) / count;
      double squares =
          sum_block([center = static_cast<Acc>(mean)](Acc value) { return (value - center) * (value - center); });
      total.merge({count, mean, squares});
    }
    mean_[part * extent_.channels + channel] = total.mean;
    squares_[part * extent_.channels + channel] = total.squares;
  }

  void sum_rows(const T* x, int64_t part) {
    int64_t channels = extent_.channels;
    int64_t step = std::clamp<int64_t>(8192 / std::max<int64_t>(channels, 1), 4, 256);  // rows in a block
    double* mean = mean_ + part * channels;
    double* squares = squares_ + part * channels;
    Acc* block_mean = scratch_ + part * 2 * channels;
    Acc* block_squares = block_mean + channels;
    std::fill_n(mean, channels, 0.0);
    std::fill_n(squares, channels, 0.0);
    for (int64_t row = begin(part); row < begin(part + 1); row += step) {
      int64_t rows = std::min(begin(part + 1) - row, step);
      sum_block(x + row * channels, rows, block_mean, block_squares);
      merge_channels(static_cast<double>(row - begin(part)), static_cast<double>(rows), block_mean, block_squares, mean,
                     squares);
    }
  }

  void sum_block(const T* x, int64_t rows, Acc* mean, Acc* squares) const {
    int64_t channels = extent_.channels;
    std::fill_n(mean, channels, Acc(0));
    std::fill_n(squares, channels, Acc(0));
    for (int64_t r = 0; r < rows; ++r)
#pragma GCC ivdep
      for (int64_t c = 0; c < channels; ++c) mean[c] += static_cast<Acc>(x[r * channels + c]);
    for (int64_t c = 0; c < channels; ++c) mean[c] /= static_cast<Acc>(rows);
    for (int64_t r = 0; r < rows; ++r)
#pragma GCC ivdep
      for (int64_t c = 0; c < channels; ++c) {
        Acc delta = static_cast<Acc>(x[r * channels + c]) - mean[c];
        squares[c] += delta * delta;
      }
  }

  ChannelExtent extent_;
  int64_t parts_;
  double* mean_;     // [parts, channels]
  double* squares_;  // [parts, channels]
  Acc* scratch_;     // [parts, 2, channels]
};

struct FillStatistics {
  template <class T>
  void operator()(TypeTag<T>, const GraphNode&, const ChannelExtent& extent, Candidate& candidate) const {
    using Acc = Compute<T>;
    candidate.workspace_bytes = sum_channels_bytes(extent);
    set_body(candidate, [extent](const Run& run) {
      Statistics<T>(extent, run.workspace).run(run.input<T>(0), *run.threads, run.output<Acc>(0), run.output<Acc>(1));
    });
  }
};

struct ParameterTypes {
  DType weight, bias;
};
ParameterTypes parameter_types(const GraphNode& node) {
  return {node.inputs[3].spec().dtype, node.inputs[4].spec().dtype};
}

// y = activation((x − mean) scale + bias (+ residual)). Inputs: x, mean, variance, weight, bias[, residual].
template <class T, class Activation>
void normalize(const ChannelExtent& extent, double eps, bool has_residual, const Activation& activation, const Run& run,
               const ParameterTypes& types) {
  using Acc = Compute<T>;
  Acc* table = static_cast<Acc*>(run.workspace);  // [3, channels]: mean, scale, bias
  fill_affine(extent.channels, eps, run.input<Acc>(1), run.input<Acc>(2), {run.inputs[3], types.weight},
              {run.inputs[4], types.bias}, table);
  const T* x = run.input<T>(0);
  T* y = run.output<T>();
  if (has_residual) {
    const T* residual = run.input<T>(5);
    for_each_element<3>(extent, table, *run.threads, [=](int64_t i, const auto& channel) {
      Acc z = (static_cast<Acc>(x[i]) - channel[0]) * channel[1] + channel[2];
      y[i] = static_cast<T>(activation(z + static_cast<Acc>(residual[i])));
    });
  } else {
    for_each_element<3>(extent, table, *run.threads, [=](int64_t i, const auto& channel) {
      y[i] = static_cast<T>(activation((static_cast<Acc>(x[i]) - channel[0]) * channel[1] + channel[2]));
    });
  }
}

struct FillNormalize {
  template <class T>
  void operator()(TypeTag<T>, const GraphNode& node, const ChannelExtent& extent, Candidate& candidate) const {
    const Attributes& a = node.attributes;
    bool has_residual = a.has("has_residual") && a.flag("has_residual");
    int64_t activation = a.has("activation") ? a.integer("activation") : -1;
    candidate.workspace_bytes = static_cast<size_t>(extent.channels) * 3 * sizeof(Compute<T>);
    candidate.in_place.push_back({0, 0});
    if (has_residual) candidate.in_place.push_back({0, 5});
    set_body(candidate,
             [extent, has_residual, activation, eps = a.number("eps"), types = parameter_types(node)](const Run& run) {
               with_activation(activation, [&](const auto& chosen) {
                 normalize<T>(extent, eps, has_residual, chosen, run, types);
               });
             });
  }
};

// running ← (1 − momentum) running + momentum statistic.
void update_running(int64_t channels, double momentum, double factor, const ChannelNumbers& running,
                    const ChannelNumbers& statistic, void* result) {
  for (int64_t c = 0; c < channels; ++c) {
    double value = (1 - momentum) * running[c] + momentum * factor * statistic[c];
    switch (running.dtype) {
      case DType::f64: static_cast<double*>(result)[c] = value; break;
      case DType::bf16: static_cast<bfloat16*>(result)[c] = static_cast<float>(value); break;
      default: static_cast<float*>(result)[c] = static_cast<float>(value);
    }
  }
}

std::vector<Candidate> update_running_candidates(const KernelRequest& request) {
  const GraphNode& node = request.node;
  double momentum = node.attributes.number("momentum"), count = static_cast<double>(node.attributes.integer("count"));
  if (count == 0) momentum = 0;
  double unbias = count > 1 ? count / (count - 1) : 1;
  auto body = [momentum, unbias, channels = node.outputs[0].shape[0], mean_type = node.inputs[0].spec().dtype,
               variance_type = node.inputs[1].spec().dtype,
               statistics_type = node.inputs[2].spec().dtype](const Run& run) {
    update_running(channels, momentum, 1, {run.inputs[0], mean_type}, {run.inputs[2], statistics_type}, run.outputs[0]);
    update_running(channels, momentum, unbias, {run.inputs[1], variance_type}, {run.inputs[3], statistics_type},
                   run.outputs[1]);
  };
  std::vector<Candidate> candidates = one_candidate(request, body);
  candidates[0].in_place = {{0, 0}, {1, 1}};
  return candidates;
}

std::vector<Candidate> statistics_candidates(const KernelRequest& request) {
  return batch_norm_candidates(request, 0, FillStatistics());
}

std::vector<Candidate> normalize_candidates(const KernelRequest& request) {
  return batch_norm_candidates(request, 0, FillNormalize());
}

}  // namespace

BONFIRE_CPU_KERNELS(batch_norm, {"batch_norm_statistics", statistics_candidates},
                    {"batch_norm_normalize", normalize_candidates}, {"batch_norm_act", normalize_candidates},
                    {"batch_norm_update_running", update_running_candidates})

}  // namespace bonfire::cpu
