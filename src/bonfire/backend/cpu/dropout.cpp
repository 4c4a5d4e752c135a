#include "bonfire/backend/cpu/every_instruction_set.h"
#include "bonfire/backend/cpu/floating.h"
#include "bonfire/backend/cpu/random_blocks.h"

namespace bonfire::cpu {

namespace {

std::vector<Candidate> dropout_candidates(const KernelRequest& request) {
  const GraphNode& node = request.node;
  const Shape& shape = node.outputs[0].shape;
  int64_t count = shape.count(), rows = shape.rank() > 0 ? shape[0] : 1;
  double p = node.attributes.number("p");
  auto number = static_cast<uint64_t>(node.attributes.integer("number"));
  return for_floating(node.outputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = Compute<T>;
    auto candidates = one_candidate(request, [count, rows, p, number](const Run& run) {
      const T* x = run.input<T>(0);
      const uint64_t* key = run.input<uint64_t>(1);  // seed, step, rank, world
      T* y = run.output<T>();
      const float dropped = static_cast<float>(p);
      const Acc scale = static_cast<Acc>(1 / (1 - p));
      auto drop = [=](int64_t begin, int64_t end, const float* numbers) {
#pragma GCC ivdep
        for (int64_t i = begin; i < end; ++i) {
          const Acc kept = static_cast<Acc>(x[i]) * scale;  // of every element: no branch
          y[i] = static_cast<T>(numbers[i - begin] >= dropped ? kept : Acc(0));
        }
      };
      const uint64_t stream = random_stream(key[1], number);
      if (key[2] == 0 && key[3] == 1) return for_each_uniform(key[0], stream, count, *run.threads, drop);
      for_each_uniform_of_rows(key[0], stream, key[2], key[3], rows, count, *run.threads, drop);
    });
    candidates[0].in_place = {{0, 0}};
    return candidates;
  });
}

}  // namespace

BONFIRE_CPU_KERNELS(dropout, {"dropout", dropout_candidates})

}  // namespace bonfire::cpu
