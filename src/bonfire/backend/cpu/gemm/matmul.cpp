// matmul and matmul_bias_act over the product of gemm.h: batches whose strides are even become one call, the rest a
// loop of calls.

#include <algorithm>

#include "bonfire/backend/cpu/device/threads.h"
#include "bonfire/backend/cpu/gemm/gemm.h"
#include "bonfire/backend/cpu/ops/fused_activation.h"
#include "bonfire/backend/cpu/simd/floating.h"
#include "bonfire/kernel/kernel.h"

namespace bonfire::cpu {

namespace {

// One axis of the batch: its extent, and how far apart (in elements) its matrices are; 0 where an operand broadcasts.
struct BatchAxis {
  int64_t extent, a, b, c;
};

struct MatmulJob {
  Gemm gemm;
  std::vector<BatchAxis> loops;  // outermost first; what gemm.batch cannot express
  int64_t activation = -1;       // one that gemm does not apply itself
  int64_t results;               // elements
  size_t workspace_bytes = 0;

  explicit MatmulJob(const GraphNode& node, F32 f32 = F32::split);
};

// Strides of the batch axes, neighbours merged where all three operands step evenly; innermost first.
std::vector<BatchAxis> batch_axes(const Shape& a, const Shape& b, const Shape& c) {
  Shape a_strides = row_major_strides(a), b_strides = row_major_strides(b), c_strides = row_major_strides(c);
  std::vector<BatchAxis> axes;
  for (int axis = 3; axis <= c.rank(); ++axis) {  // counted from the end
    if (c[-axis] == 1) continue;
    BatchAxis next{c[-axis], axis <= a.rank() && a[-axis] != 1 ? a_strides[-axis] : 0,
                   axis <= b.rank() && b[-axis] != 1 ? b_strides[-axis] : 0, c_strides[-axis]};
    if (!axes.empty()) {
      BatchAxis& last = axes.back();
      if (next.a == last.a * last.extent && next.b == last.b * last.extent && next.c == last.c * last.extent) {
        last.extent *= next.extent;
        continue;
      }
    }
    axes.push_back(next);
  }
  return axes;
}

void set_activation(MatmulJob& job, int64_t activation) {
  using F = ElementwiseFunction;
  if (activation == static_cast<int64_t>(F::relu)) {
    job.gemm.activation = Activation::relu;
  } else if (activation == static_cast<int64_t>(F::gelu_tanh)) {
    job.gemm.activation = Activation::gelu_tanh;
  } else {
    job.activation = activation;
  }
}

MatmulJob::MatmulJob(const GraphNode& node, F32 f32) {
  const Shape &a = node.inputs[0].spec().shape, &b = node.inputs[1].spec().shape, &c = node.outputs[0].shape;
  results = c.count();
  gemm.transpose_a = node.attributes.flag("transpose_a");
  gemm.transpose_b = node.attributes.flag("transpose_b");
  gemm.m = c[-2];
  gemm.n = c[-1];
  gemm.k = a[gemm.transpose_a ? -2 : -1];
  gemm.lda = a[-1];
  gemm.ldb = b[-1];
  gemm.ldc = c[-1];
  gemm.input = gemm.output = node.outputs[0].dtype;
  gemm.f32 = f32;
  if (node.attributes.has("activation")) set_activation(*this, node.attributes.integer("activation"));
  if (node.attributes.has("has_bias") && node.attributes.flag("has_bias")) {
    gemm.bias = BiasAlong::columns;
    gemm.bias_type = node.inputs[2].spec().dtype;
  }
  loops = batch_axes(a, b, c);
  if (!loops.empty()) {
    gemm.batch = loops[0].extent;
    gemm.stride_a = loops[0].a;
    gemm.stride_b = loops[0].b;
    gemm.stride_c = loops[0].c;
    loops.erase(loops.begin());
  }
  std::reverse(loops.begin(), loops.end());
  if (results > 0) workspace_bytes = gemm_workspace(gemm, cpu_threads());
}

struct MatmulOperands {
  const std::byte *a, *b;
  const void* bias;
  std::byte* c;
};

// Goes over loops[depth…], with the operands of the place reached so far.
void multiply(const MatmulJob& job, size_t depth, const MatmulOperands& at, const Run& run) {
  if (depth == job.loops.size()) {
    std::span<std::byte> workspace(static_cast<std::byte*>(run.workspace), job.workspace_bytes);
    gemm(job.gemm, at.a, at.b, at.bias, at.c, workspace, *run.threads);
    return;
  }
  const BatchAxis& axis = job.loops[depth];
  int64_t size = static_cast<int64_t>(size_of(job.gemm.input));
  for (int64_t i = 0; i < axis.extent; ++i)
    multiply(job, depth + 1, {at.a + i * axis.a * size, at.b + i * axis.b * size, at.bias, at.c + i * axis.c * size},
             run);
}

template <class T>
void activate(const MatmulJob& job, T* values, ThreadPool& threads) {
  AnyActivation activation{static_cast<ElementwiseFunction>(job.activation)};
  threads.parallel_for(job.results, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) values[i] = static_cast<T>(activation(static_cast<Compute<T>>(values[i])));
  });
}

template <class T>
Candidate make_matmul(const KernelRequest& request, std::string name, const MatmulJob& job) {
  Candidate candidate = make_candidate(request, std::move(name), [job](const Run& run) {
    if (job.results == 0) return;
    multiply(job, 0,
             {run.input<std::byte>(0), run.input<std::byte>(1), run.inputs.size() < 3 ? nullptr : run.inputs[2],
              run.output<std::byte>()},
             run);
    if (job.activation >= 0) activate(job, run.output<T>(), *run.threads);
  });
  candidate.workspace_bytes = job.workspace_bytes;
  if (is_split(job.gemm)) candidate.error = kSplitError;
  return candidate;
}

std::vector<Candidate> matmul_candidates(const KernelRequest& request) {
  return for_floating(request.node.outputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    MatmulJob job(request.node);
    std::vector<Candidate> candidates;
    candidates.push_back(make_matmul<T>(request, "gemm", job));
    if (is_split(job.gemm))
      candidates.push_back(make_matmul<T>(request, "gemm_whole", MatmulJob(request.node, F32::whole)));
    return candidates;
  });
}

const bool registered[] = {
    register_kernel("matmul", DeviceType::cpu, matmul_candidates),
    register_kernel("matmul_bias_act", DeviceType::cpu, matmul_candidates),
};

}  // namespace

}  // namespace bonfire::cpu
