// CPU kernels of ops/shape_ops.h. All of them move elements without looking at them, so they know only their size.

#include <algorithm>
#include <cstring>
#include <vector>

#include "bonfire/backend/cpu/ops/strided_copy.h"
#include "bonfire/base/error.h"
#include "bonfire/kernel/kernel.h"

namespace bonfire::cpu {

namespace {

// A copy between one input and one output, each from an offset in elements on.
struct OffsetCopy {
  StridedCopy copy;
  int input, output;
  size_t source_offset, target_offset;  // bytes

  void run(const Run& run) const {
    copy.run(run.input<std::byte>(static_cast<size_t>(input)) + source_offset,
             run.output<std::byte>(static_cast<size_t>(output)) + target_offset, *run.threads);
  }
};

std::vector<Candidate> copies(const KernelRequest& request, std::vector<OffsetCopy> all) {
  return one_candidate(request, [all = std::move(all)](const Run& run) {
    for (const OffsetCopy& one : all) one.run(run);
  });
}

std::vector<Candidate> reshape(const KernelRequest& request) {
  const TensorSpec& spec = request.node.outputs[0];
  Shape flat{spec.shape.count()};
  return copies(request, {{{flat, {1}, {1}, size_of(spec.dtype)}, 0, 0, 0, 0}});
}

std::vector<Candidate> permute(const KernelRequest& request) {
  const TensorSpec& spec = request.node.outputs[0];
  Shape strides = row_major_strides(request.node.inputs[0].spec().shape), permuted = strides;
  Shape axes = request.node.attributes.ints("axes");
  for (int i = 0; i < axes.rank(); ++i) permuted[i] = strides[static_cast<int>(axes[i])];
  return copies(request, {{{spec.shape, permuted, row_major_strides(spec.shape), size_of(spec.dtype)}, 0, 0, 0, 0}});
}

std::vector<Candidate> broadcast_to(const KernelRequest& request) {
  const TensorSpec& spec = request.node.outputs[0];
  const Shape& source = request.node.inputs[0].spec().shape;
  Shape strides = row_major_strides(source), spread;
  int added = spec.shape.rank() - source.rank();
  for (int i = 0; i < spec.shape.rank(); ++i)
    spread.push_back(i < added || source[i - added] == 1 ? 0 : strides[i - added]);
  return copies(request, {{{spec.shape, spread, row_major_strides(spec.shape), size_of(spec.dtype)}, 0, 0, 0, 0}});
}

std::vector<Candidate> slice(const KernelRequest& request) {
  const TensorSpec& spec = request.node.outputs[0];
  Shape strides = row_major_strides(request.node.inputs[0].spec().shape);
  Shape begin = request.node.attributes.ints("begin"), steps = request.node.attributes.ints("steps");
  int64_t offset = 0;
  for (int i = 0; i < strides.rank(); ++i) {
    offset += begin[i] * strides[i];
    strides[i] *= steps[i];
  }
  size_t bytes = size_of(spec.dtype);
  return copies(
      request,
      {{{spec.shape, strides, row_major_strides(spec.shape), bytes}, 0, 0, static_cast<size_t>(offset) * bytes, 0}});
}

// The copies between a whole tensor and its parts along an axis, in either direction.
std::vector<Candidate> copy_parts(const KernelRequest& request, bool into_whole) {
  const GraphNode& node = request.node;
  TensorSpec whole = into_whole ? node.outputs[0] : node.inputs[0].spec();
  int axis = static_cast<int>(node.attributes.integer("axis"));
  Shape strides = row_major_strides(whole.shape);
  size_t bytes = size_of(whole.dtype), offset = 0;
  std::vector<OffsetCopy> all;
  for (int i = 0; i < static_cast<int>(into_whole ? node.inputs.size() : node.outputs.size()); ++i) {
    const Shape& part =
        into_whole ? node.inputs[static_cast<size_t>(i)].spec().shape : node.outputs[static_cast<size_t>(i)].shape;
    Shape part_strides = row_major_strides(part);
    if (into_whole) {
      all.push_back({{part, part_strides, strides, bytes}, i, 0, 0, offset});
    } else {
      all.push_back({{part, strides, part_strides, bytes}, 0, i, offset, 0});
    }
    offset += static_cast<size_t>(part[axis] * strides[axis]) * bytes;
  }
  return copies(request, std::move(all));
}

std::vector<Candidate> concat(const KernelRequest& request) { return copy_parts(request, true); }
std::vector<Candidate> split(const KernelRequest& request) { return copy_parts(request, false); }

std::vector<Candidate> put_slice(const KernelRequest& request) {
  const TensorSpec &whole = request.node.outputs[0], &part = request.node.inputs[1].spec();
  const Shape strides = row_major_strides(whole.shape);
  const size_t bytes = size_of(whole.dtype);
  const int axis = static_cast<int>(request.node.attributes.integer("axis"));
  const OffsetCopy all{{{whole.shape.count()}, {1}, {1}, bytes}, 0, 0, 0, 0};
  const OffsetCopy own{{part.shape, row_major_strides(part.shape), strides, bytes},
                       1,
                       0,
                       0,
                       static_cast<size_t>(request.node.attributes.integer("begin") * strides[axis]) * bytes};
  std::vector<Candidate> list = one_candidate(request, [all, own](const Run& run) {
    if (run.outputs[0] != run.inputs[0]) all.run(run);
    own.run(run);
  });
  list[0].in_place = {{0, 0}};
  return list;
}

// pad writes each target row once. A row is the last padded axis with everything inside it; outer axes decide whether
// it holds data at all.
struct PadRows {
  Shape outer;                               // of the target
  Shape before, steps, extents, strides;     // by outer axis: where the data lies and its strides in the source
  int64_t row_before, row_step, row_extent;  // of the padded axis inside a row
  int64_t row;                               // the target's extent there
  int64_t inner;                             // elements a step of that axis

  // The source row of target row `index`, or -1 when it is all padding.
  int64_t source_row(int64_t index) const {
    int64_t offset = 0;
    for (int i = outer.rank() - 1; i >= 0; --i) {
      int64_t position = index % outer[i] - before[i];
      index /= outer[i];
      if (position < 0 || position % steps[i] != 0 || position / steps[i] >= extents[i]) return -1;
      offset += position / steps[i] * strides[i];
    }
    return offset;
  }

  template <class T>
  void run(const T* source, T* target, T value, ThreadPool& threads) const {
    int64_t elements = row * inner;
    threads.parallel_for(outer.count(), std::max<int64_t>(1, 16384 / std::max<int64_t>(1, elements)),
                         [&](int64_t begin, int64_t end) {
                           for (int64_t i = begin; i < end; ++i) fill_row(source, target + i * elements, value, i);
                         });
  }

  template <class T>
  void fill_row(const T* source, T* target, T value, int64_t index) const {
    int64_t offset = source_row(index);
    if (offset < 0 || row_extent == 0) {
      std::fill_n(target, row * inner, value);
      return;
    }
    const T* from = source + offset;
    std::fill_n(target, row_before * inner, value);
    T* to = target + row_before * inner;
    if (row_step == 1) {
      std::memcpy(to, from, static_cast<size_t>(row_extent * inner) * sizeof(T));
      to += row_extent * inner;
    } else {
      for (int64_t i = 0; i < row_extent; ++i) {
        std::memcpy(to, from + i * inner, static_cast<size_t>(inner) * sizeof(T));
        to += inner;
        if (i + 1 == row_extent) break;
        std::fill_n(to, (row_step - 1) * inner, value);
        to += (row_step - 1) * inner;
      }
    }
    std::fill(to, target + row * inner, value);
  }
};

std::vector<Candidate> pad(const KernelRequest& request) {
  const TensorSpec& spec = request.node.outputs[0];
  const Shape& source = request.node.inputs[0].spec().shape;
  const Attributes& attributes = request.node.attributes;
  Shape before = attributes.ints("before"), steps = attributes.ints("steps"), strides = row_major_strides(source);
  int axis = spec.shape.rank() - 1;
  int64_t inner = 1;
  for (; axis > 0 && spec.shape[axis] == source[axis]; --axis) inner *= source[axis];
  PadRows rows{{}, {}, {}, {}, {}, before[axis], steps[axis], source[axis], spec.shape[axis], inner};
  for (int i = 0; i < axis; ++i) {
    rows.outer.push_back(spec.shape[i]);
    rows.before.push_back(before[i]);
    rows.steps.push_back(steps[i]);
    rows.extents.push_back(source[i]);
    rows.strides.push_back(strides[i]);
  }
  return dispatch(spec.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T value = static_cast<T>(static_cast<float>(attributes.integer("value")));
    if constexpr (std::is_integral_v<T>) value = static_cast<T>(attributes.integer("value"));
    return one_candidate(
        request, [rows, value](const Run& run) { rows.run(run.input<T>(0), run.output<T>(), value, *run.threads); });
  });
}

[[maybe_unused]] const bool registered[] = {
    register_kernel("reshape", DeviceType::cpu, reshape),
    register_kernel("permute", DeviceType::cpu, permute),
    register_kernel("broadcast_to", DeviceType::cpu, broadcast_to),
    register_kernel("slice", DeviceType::cpu, slice),
    register_kernel("concat", DeviceType::cpu, concat),
    register_kernel("split", DeviceType::cpu, split),
    register_kernel("pad", DeviceType::cpu, pad),
    register_kernel("put_slice", DeviceType::cpu, put_slice),
};

}  // namespace

}  // namespace bonfire::cpu
