#pragma once
// recompute(): what a part of the forward pass computes is not kept for the backward pass, which computes it again from
// what goes into the part. That costs the part's time once more, and gives the memory of all between its ends.
//
//   Tensor y = recompute([&](const Tensor& x) { return block(x); }, x);
//
// The numbers are the same: dropout draws what it drew before, running statistics are updated once. Parts may be inside
// each other; then the inner one is computed again whenever the outer one is. A step that is committed between its
// forward and its backward pass (loss.item() in between) keeps everything.

#include <cstdint>
#include <utility>

namespace bonfire {

class Trace;

// What is traced in the forward pass while it lives is computed again in the backward pass.
class RecomputeScope {
 public:
  RecomputeScope();
  ~RecomputeScope();
  RecomputeScope(const RecomputeScope&) = delete;
  RecomputeScope& operator=(const RecomputeScope&) = delete;

  uint32_t part_in(Trace& trace);  // its number there, from 1

 private:
  RecomputeScope* outer_;
  uint64_t trace_ = 0;
  uint32_t part_ = 0;
};

template <class Function, class... Arguments>
auto recompute(Function&& function, Arguments&&... arguments) {
  const RecomputeScope scope;
  return std::forward<Function>(function)(std::forward<Arguments>(arguments)...);
}

}  // namespace bonfire
