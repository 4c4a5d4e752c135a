// Ops that only move bytes: copy, reorder between layouts, crossing from another device.

#include <algorithm>
#include <cstring>

#include "bonfire/backend/cpu/ops/strided_copy.h"
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

// [N, C, H, W] as [N, C / block, H, W, block]: what strides can say of a blocked layout, for the channels that fill
// whole blocks and, where some are left, for those.
struct Piece {
  Shape shape, source_strides, target_strides;
  int64_t source_offset = 0, target_offset = 0;  // elements
};

struct BlockedView {
  Shape strides;   // of [N, C / block, H, W, block]
  int64_t offset;  // of the channel where it begins
};

BlockedView view_of(const Shape& shape, const Layout& layout, int64_t block, int64_t first_channel) {
  if (layout.block == 0) {
    Shape s = strides_of(shape, layout);
    return {{s[0], s[1] * block, s[2], s[3], s[1]}, first_channel * s[1]};
  }
  int64_t plane = shape[2] * shape[3] * block, blocks = (shape[1] + block - 1) / block;
  return {{blocks * plane, plane, shape[3] * block, block, 1}, first_channel / block * plane};
}

std::vector<Piece> pieces_of(const Shape& shape, const Layout& from, const Layout& to) {
  if (from.block == 0 && to.block == 0) {
    // In the order of the target, so that its rows are written one after the other.
    Shape source = strides_of(shape, from), target = strides_of(shape, to);
    Piece piece{shape, source, target};
    for (int i = 0; i < to.order.rank(); ++i) {
      int axis = static_cast<int>(to.order[i]);
      piece.shape[i] = shape[axis];
      piece.source_strides[i] = source[axis];
      piece.target_strides[i] = target[axis];
    }
    return {piece};
  }
  int64_t block = std::max(from.block, to.block), whole = shape[1] / block * block;
  std::vector<Piece> pieces;
  auto add = [&](int64_t first_channel, int64_t blocks, int64_t lanes) {
    BlockedView source = view_of(shape, from, block, first_channel), target = view_of(shape, to, block, first_channel);
    pieces.push_back(
        {{shape[0], blocks, shape[2], shape[3], lanes}, source.strides, target.strides, source.offset, target.offset});
  };
  if (whole > 0) add(0, whole / block, block);
  if (whole < shape[1]) add(whole, 1, shape[1] - whole);
  return pieces;
}

std::vector<Candidate> reorder_candidates(const KernelRequest& request) {
  const GraphNode& node = request.node;
  const TensorSpec& spec = node.outputs[0];
  Layout from{node.attributes.ints("from_order"), static_cast<int16_t>(node.attributes.integer("from_block"))};
  Layout to{node.attributes.ints("to_order"), static_cast<int16_t>(node.attributes.integer("to_block"))};
  BONFIRE_CHECK(from.block == 0 || to.block == 0 || from.block == to.block, "no kernel between two blocked layouts");
  struct Move {
    StridedCopy copy;
    int64_t source, target;  // bytes
  };
  std::vector<Move> moves;
  size_t size = size_of(spec.dtype);
  for (const Piece& piece : pieces_of(spec.shape, from, to))
    moves.push_back({StridedCopy(piece.shape, piece.source_strides, piece.target_strides, size),
                     piece.source_offset * static_cast<int64_t>(size),
                     piece.target_offset * static_cast<int64_t>(size)});
  // The last block of a target that is not full must hold zeros where there is no channel.
  size_t padded = to.block > 0 && spec.shape[1] % to.block != 0 ? bytes_of(spec.shape, spec.dtype, to) : 0;
  Candidate candidate = make_candidate(request, "strided", [moves, padded](const Run& run) {
    if (padded > 0) std::memset(run.outputs[0], 0, padded);
    for (const Move& move : moves)
      move.copy.run(run.input<char>(0) + move.source, run.output<char>() + move.target, *run.threads);
  });
  candidate.input_layouts[0] = from;
  candidate.output_layouts[0] = to;
  return {std::move(candidate)};
}

// The value lies on another device; its queue has finished writing it before this one starts.
std::vector<Candidate> crossing_candidates(const KernelRequest& request) {
  Device source = request.node.inputs[0].spec().device;
  std::vector<Candidate> list =
      one_candidate(request, [source, bytes = request.node.outputs[0].bytes()](const Run& run) {
        memory_of(source).copy_to_host(run.outputs[0], run.inputs[0], bytes);
      });
  if (request.arriving[0].block == 0) list[0].input_layouts[0] = list[0].output_layouts[0] = request.arriving[0];
  return list;
}

const bool registered = register_kernel("copy", DeviceType::cpu, copy_candidates) &&
                        register_kernel("random_key", DeviceType::cpu, copy_candidates) &&
                        register_kernel("reorder", DeviceType::cpu, reorder_candidates) &&
                        register_kernel("copy_to_device", DeviceType::cpu, crossing_candidates);

}  // namespace
}  // namespace bonfire::cpu
