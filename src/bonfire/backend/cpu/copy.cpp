// Ops that only move bytes: copy, reorder between layouts, crossing from another device.

#include <algorithm>
#include <cstring>

#include "bonfire/base/error.h"
#include "bonfire/kernel/kernel.h"

namespace bonfire::cpu {

namespace {

constexpr int64_t kGrain = 1 << 16;  // bytes a thread must have to be worth waking

std::vector<Candidate> copy_candidates(const KernelRequest& request) {
  size_t bytes = request.node.outputs[0].bytes();
  Candidate candidate = make_candidate(request, "memcpy", [bytes](const Run& run) {
    run.threads->parallel_for(static_cast<int64_t>(bytes), kGrain, [&](int64_t begin, int64_t end) {
      std::memcpy(run.output<char>() + begin, run.input<char>(0) + begin, static_cast<size_t>(end - begin));
    });
  });
  candidate.input_layouts[0] = candidate.output_layouts[0] = request.arriving[0];
  return {std::move(candidate)};
}

// Elements move row by row of the target; a row is read with one stride.
template <class T>
void move_rows(const Run& run, const Shape& extents, const Shape& from, int64_t rows) {
  int last = std::max(extents.rank(), 1) - 1;
  int64_t row = extents[last], stride = from[last];
  run.threads->parallel_for(rows, kGrain / (row * static_cast<int64_t>(sizeof(T))) + 1,
                            [&](int64_t begin, int64_t end) {
                              for (int64_t r = begin; r < end; ++r) {
                                int64_t offset = 0, rest = r;
                                for (int axis = last - 1; axis >= 0; --axis) {
                                  offset += rest % extents[axis] * from[axis];
                                  rest /= extents[axis];
                                }
                                const T* source = run.input<T>(0) + offset;
                                T* target = run.output<T>() + r * row;
                                for (int64_t i = 0; i < row; ++i) target[i] = source[i * stride];
                              }
                            });
}

std::vector<Candidate> reorder_candidates(const KernelRequest& request) {
  const GraphNode& node = request.node;
  const TensorSpec& spec = node.outputs[0];
  Layout from{node.attributes.ints("from_order"), static_cast<int16_t>(node.attributes.integer("from_block"))};
  Layout to{node.attributes.ints("to_order"), static_cast<int16_t>(node.attributes.integer("to_block"))};
  BONFIRE_CHECK(from.block == 0 && to.block == 0, "no kernel for blocked reorders");
  Shape strides = strides_of(spec.shape, from), extents = spec.shape, ordered = strides;
  for (int i = 0; i < to.order.rank(); ++i) {  // walk in the order of the target
    extents[i] = spec.shape[static_cast<int>(to.order[i])];
    ordered[i] = strides[static_cast<int>(to.order[i])];
  }
  int64_t rows = spec.shape.count() == 0 ? 0 : spec.shape.count() / extents[extents.rank() - 1];
  Candidate candidate = make_candidate(request, "strided", [=, size = size_of(spec.dtype)](const Run& run) {
    switch (size) {
      case 1: return move_rows<uint8_t>(run, extents, ordered, rows);
      case 2: return move_rows<uint16_t>(run, extents, ordered, rows);
      case 4: return move_rows<uint32_t>(run, extents, ordered, rows);
      default: return move_rows<uint64_t>(run, extents, ordered, rows);
    }
  });
  candidate.input_layouts[0] = from;
  candidate.output_layouts[0] = to;
  return {std::move(candidate)};
}

// The value lies on another device; its queue has finished writing it before this one starts.
std::vector<Candidate> crossing_candidates(const KernelRequest& request) {
  Device source = request.node.inputs[0].spec().device;
  return one_candidate(request, [source, bytes = request.node.outputs[0].bytes()](const Run& run) {
    memory_of(source).copy_to_host(run.outputs[0], run.inputs[0], bytes);
  });
}

const bool registered = register_kernel("copy", DeviceType::cpu, copy_candidates) &&
                        register_kernel("random_key", DeviceType::cpu, copy_candidates) &&
                        register_kernel("reorder", DeviceType::cpu, reorder_candidates) &&
                        register_kernel("copy_to_device", DeviceType::cpu, crossing_candidates);

}  // namespace
}  // namespace bonfire::cpu
