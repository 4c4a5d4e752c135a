#include "bonfire/backend/cpu/ops/random_blocks.h"
#include "bonfire/backend/cpu/simd/every_instruction_set.h"
#include "bonfire/backend/cpu/simd/floating.h"

namespace bonfire::cpu {

namespace {

std::vector<Candidate> dropout_candidates(const KernelRequest& request) {
  const GraphNode& node = request.node;
  const RandomPlaces places = RandomPlaces::of(node.outputs[0].shape, node.attributes);
  double p = node.attributes.number("p");
  auto number = static_cast<uint64_t>(node.attributes.integer("number"));
  return for_floating(node.outputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = Compute<T>;
    auto candidates = one_candidate(request, [places, p, number](const Run& run) {
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
      for_each_uniform(key[0], random_stream(key[1], number), places, key[2], key[3], *run.threads, drop);
    });
    candidates[0].in_place = {{0, 0}};
    return candidates;
  });
}

}  // namespace

BONFIRE_CPU_KERNELS(dropout, {"dropout", dropout_candidates})

}  // namespace bonfire::cpu
