#pragma once
// One kernel over many tensors, cut into pieces: sizes and addresses travel as the kernel's argument, and a block finds
// its piece by its number.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace bonfire::cuda {

inline constexpr int kPieceElements = 2048;    // of a block
inline constexpr int kTensorsOfAKernel = 192;  // its argument must stay under 32 KiB

// A run of tensors and the blocks they are cut into.
struct TensorPieces {
  int tensors = 0;
  int blocks = 0;
  int first_block[kTensorsOfAKernel + 1];  // of each tensor
  int64_t count[kTensorsOfAKernel];        // elements

  struct Piece {
    int tensor;
    int64_t begin, end;  // elements
  };
  __device__ Piece piece(int block) const {
    int low = 0, high = tensors;  // first_block[low] <= block < first_block[high]
    while (high - low > 1) {
      int middle = (low + high) / 2;
      (first_block[middle] <= block ? low : high) = middle;
    }
    int64_t begin = static_cast<int64_t>(block - first_block[low]) * kPieceElements;
    return {low, begin, begin + kPieceElements < count[low] ? begin + kPieceElements : count[low]};
  }

  void add(int64_t elements) {
    first_block[tensors] = blocks;
    count[tensors++] = elements;
    blocks += static_cast<int>((elements + kPieceElements - 1) / kPieceElements);
    first_block[tensors] = blocks;
  }
};

// What one kernel takes of a node's tensors: from number `first` on. Cut is TensorPieces or has it as its base.
template <class Cut>
struct TensorPart {
  size_t first;
  Cut cut{};
};

template <class Cut>
std::vector<TensorPart<Cut>> parts_of(const std::vector<int64_t>& counts) {
  std::vector<TensorPart<Cut>> parts;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (parts.empty() || parts.back().cut.tensors == kTensorsOfAKernel) parts.push_back({i});
    parts.back().cut.add(counts[i]);
  }
  return parts;
}

}  // namespace bonfire::cuda
