// Ops that only move elements: each is one strided copy, or a few.
#include <cstring>

#include "bonfire/backend/cuda/candidate.h"
#include "bonfire/backend/cuda/strided_copy.h"
#include "bonfire/base/error.h"

namespace bonfire::cuda {

namespace {

const Shape& input_shape(const KernelRequest& request, size_t i = 0) { return request.node.inputs[i].spec().shape; }
const Shape& output_shape(const KernelRequest& request) { return request.node.outputs[0].shape; }
size_t element_bytes(const KernelRequest& request) { return size_of(request.node.outputs[0].dtype); }

std::vector<Candidate> copying(const KernelRequest& request, const StridedCopy& copy) {
  return one_candidate(request, [copy = simplified(copy)](const Run& run) {
    run_strided_copy(copy, run.inputs[0], run.outputs[0], stream_of(run));
  });
}

std::vector<Candidate> reorder(const KernelRequest& request) {
  const Attributes& a = request.node.attributes;
  Layout from{a.ints("from_order"), static_cast<int16_t>(a.integer("from_block"))};
  Layout to{a.ints("to_order"), static_cast<int16_t>(a.integer("to_block"))};
  const Shape& shape = output_shape(request);
  std::vector<Candidate> list =
      copying(request, {shape, strides_of(shape, from), strides_of(shape, to), 0, 0, element_bytes(request)});
  list[0].input_layouts[0] = from;
  list[0].output_layouts[0] = to;
  return list;
}

// `copy` keeps the layout that its input has.
std::vector<Candidate> copy(const KernelRequest& request) {
  const Shape& shape = output_shape(request);
  Shape strides = row_major_strides(shape);
  std::vector<Candidate> list = copying(request, {shape, strides, strides, 0, 0, element_bytes(request)});
  list[0].input_layouts[0] = list[0].output_layouts[0] = request.arriving[0];
  return list;
}

std::vector<Candidate> permute(const KernelRequest& request) {
  Shape axes = request.node.attributes.ints("axes"), strides = row_major_strides(input_shape(request)), read = axes;
  for (int i = 0; i < axes.rank(); ++i) read[i] = strides[static_cast<int>(axes[i])];
  const Shape& shape = output_shape(request);
  return copying(request, {shape, read, row_major_strides(shape), 0, 0, element_bytes(request)});
}

std::vector<Candidate> broadcast_to(const KernelRequest& request) {
  const Shape &from = input_shape(request), &shape = output_shape(request);
  Shape strides = row_major_strides(from), read = shape;
  int added = shape.rank() - from.rank();
  for (int i = 0; i < shape.rank(); ++i) read[i] = i < added || from[i - added] == 1 ? 0 : strides[i - added];
  return copying(request, {shape, read, row_major_strides(shape), 0, 0, element_bytes(request)});
}

std::vector<Candidate> slice(const KernelRequest& request) {
  Shape begin = request.node.attributes.ints("begin"), steps = request.node.attributes.ints("steps");
  Shape read = row_major_strides(input_shape(request));
  int64_t offset = 0;
  for (int i = 0; i < begin.rank(); ++i) {
    offset += begin[i] * read[i];
    read[i] *= steps[i];
  }
  const Shape& shape = output_shape(request);
  return copying(request, {shape, read, row_major_strides(shape), offset, 0, element_bytes(request)});
}

// The bits of a whole number as an element of `dtype`.
uint64_t pattern_of(int64_t value, DType dtype) {
  uint64_t pattern = 0;
  dispatch(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T element;
    if constexpr (std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>) {
      element = T(static_cast<float>(value));
    } else {
      element = static_cast<T>(value);
    }
    std::memcpy(&pattern, &element, sizeof(T));
  });
  return pattern;
}

std::vector<Candidate> pad(const KernelRequest& request) {
  const Attributes& a = request.node.attributes;
  Shape before = a.ints("before"), steps = a.ints("steps"), write = row_major_strides(output_shape(request));
  int64_t offset = 0;
  for (int i = 0; i < before.rank(); ++i) {
    offset += before[i] * write[i];
    write[i] *= steps[i];
  }
  const Shape& shape = input_shape(request);
  StridedCopy copy = simplified({shape, row_major_strides(shape), write, 0, offset, element_bytes(request)});
  uint64_t pattern = pattern_of(a.integer("value"), request.node.outputs[0].dtype);
  return one_candidate(request, [copy, pattern, count = output_shape(request).count()](const Run& run) {
    fill_pattern(run.outputs[0], pattern, copy.element_bytes, count, stream_of(run));
    run_strided_copy(copy, run.inputs[0], run.outputs[0], stream_of(run));
  });
}

// Copies between a whole tensor and parts that lie one after the other along an axis of it.
std::vector<StridedCopy> part_copies(const Shape& whole, std::span<const Shape> parts, int axis, bool split,
                                     size_t bytes) {
  std::vector<StridedCopy> copies;
  Shape strides = row_major_strides(whole);
  int64_t begin = 0;
  for (const Shape& part : parts) {
    StridedCopy copy{part, row_major_strides(part), strides, 0, begin * strides[axis], bytes};
    if (split) {
      std::swap(copy.read, copy.write);
      std::swap(copy.read_offset, copy.write_offset);
    }
    copies.push_back(simplified(copy));
    begin += part[axis];
  }
  return copies;
}

std::vector<Candidate> concat(const KernelRequest& request) {
  std::vector<Shape> parts;
  for (const GraphValue& input : request.node.inputs) parts.push_back(input.spec().shape);
  int axis = static_cast<int>(request.node.attributes.integer("axis"));
  auto copies = part_copies(output_shape(request), parts, axis, false, element_bytes(request));
  return one_candidate(request, [copies](const Run& run) {
    for (size_t i = 0; i < copies.size(); ++i)
      run_strided_copy(copies[i], run.inputs[i], run.outputs[0], stream_of(run));
  });
}

std::vector<Candidate> split(const KernelRequest& request) {
  std::vector<Shape> parts;
  for (const TensorSpec& output : request.node.outputs) parts.push_back(output.shape);
  int axis = static_cast<int>(request.node.attributes.integer("axis"));
  auto copies = part_copies(input_shape(request), parts, axis, true, element_bytes(request));
  return one_candidate(request, [copies](const Run& run) {
    for (size_t i = 0; i < copies.size(); ++i)
      run_strided_copy(copies[i], run.inputs[0], run.outputs[i], stream_of(run));
  });
}

std::vector<Candidate> copy_to_device(const KernelRequest& request) {
  std::vector<Candidate> list = one_candidate(request, [bytes = request.node.outputs[0].bytes()](const Run& run) {
    if (bytes > 0)
      check(cudaMemcpyAsync(run.outputs[0], run.inputs[0], bytes, cudaMemcpyDefault, stream_of(run)),
            "cudaMemcpyAsync");
  });
  if (request.arriving[0].block == 0) list[0].input_layouts[0] = list[0].output_layouts[0] = request.arriving[0];
  return list;
}

std::vector<Candidate> constant(const KernelRequest& request) {
  const TensorSpec& spec = request.node.outputs[0];
  uint64_t pattern = pattern_of(request.node.attributes.integer("value"), spec.dtype);
  return one_candidate(request, [pattern, bytes = size_of(spec.dtype), count = spec.shape.count()](const Run& run) {
    fill_pattern(run.outputs[0], pattern, bytes, count, stream_of(run));
  });
}

const bool registered =
    register_kernel("reorder", DeviceType::cuda, reorder) && register_kernel("copy", DeviceType::cuda, copy) &&
    register_kernel("random_key", DeviceType::cuda, copy) && register_kernel("permute", DeviceType::cuda, permute) &&
    register_kernel("broadcast_to", DeviceType::cuda, broadcast_to) &&
    register_kernel("slice", DeviceType::cuda, slice) && register_kernel("pad", DeviceType::cuda, pad) &&
    register_kernel("concat", DeviceType::cuda, concat) && register_kernel("split", DeviceType::cuda, split) &&
    register_kernel("constant", DeviceType::cuda, constant) &&
    register_kernel("copy_to_device", DeviceType::cuda, copy_to_device);

}  // namespace

}  // namespace bonfire::cuda
