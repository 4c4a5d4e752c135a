#include "bonfire/backend/cpu/every_instruction_set.h"
#include "bonfire/backend/cpu/floating.h"
#include "bonfire/backend/cpu/random_blocks.h"

namespace bonfire::cpu {

namespace {

std::vector<Candidate> dropout_candidates(const KernelRequest& request) {
  const GraphNode& node = request.node;
  int64_t count = node.outputs[0].shape.count();
  double p = node.attributes.number("p");
  auto number = static_cast<uint64_t>(node.attributes.integer("number"));
  return for_floating(node.outputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = Compute<T>;
    auto candidates = one_candidate(request, [count, p, number](const Run& run) {
      const T* x = run.input<T>(0);
      const uint64_t* key = run.input<uint64_t>(1);  // seed, step
      T* y = run.output<T>();
      const float dropped = static_cast<float>(p);
      const Acc scale = static_cast<Acc>(1 / (1 - p));
      for_each_uniform(key[0], random_stream(key[1], number), count, *run.threads,
                       [&](int64_t begin, int64_t end, const float* numbers) {
                         for (int64_t i = begin; i < end; ++i)
                           y[i] = numbers[i - begin] >= dropped ? static_cast<T>(static_cast<Acc>(x[i]) * scale) : T(0);
                       });
    });
    candidates[0].in_place = {{0, 0}};
    return candidates;
  });
}

}  // namespace

BONFIRE_CPU_KERNELS(dropout, {"dropout", dropout_candidates})

}  // namespace bonfire::cpu
