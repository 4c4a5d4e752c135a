#include "bonfire/backend/cpu/ops/random_blocks.h"
#include "bonfire/backend/cpu/simd/every_instruction_set.h"
#include "bonfire/backend/cpu/simd/floating.h"

namespace bonfire::cpu {

namespace {

struct RandomNode {
  RandomPlaces places;
  uint64_t number;

  explicit RandomNode(const GraphNode& node)
      : places(RandomPlaces::of(node.outputs[0].shape, node.attributes)),
        number(static_cast<uint64_t>(node.attributes.integer("number"))) {}
};

std::vector<Candidate> uniform_candidates(const KernelRequest& request) {
  return for_floating(request.node.outputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return one_candidate(request, [node = RandomNode(request.node)](const Run& run) {
      const uint64_t* key = run.input<uint64_t>(0);  // seed, step
      T* out = run.output<T>();
      for_each_uniform(key[0], random_stream(key[1], node.number), node.places, 0, 1, *run.threads,
                       [out](int64_t begin, int64_t end, const float* numbers) {
                         for (int64_t i = begin; i < end; ++i) out[i] = static_cast<T>(numbers[i - begin]);
                       });
    });
  });
}

std::vector<Candidate> normal_candidates(const KernelRequest& request) {
  return for_floating(request.node.outputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return one_candidate(request, [node = RandomNode(request.node)](const Run& run) {
      const uint64_t* key = run.input<uint64_t>(0);  // seed, step
      T* out = run.output<T>();
      run.threads->parallel_for(node.places.count, 1024, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          out[i] = static_cast<T>(normal_at(key[0], random_stream(key[1], node.number), node.places.at(i, 0, 1)));
      });
    });
  });
}

}  // namespace

BONFIRE_CPU_KERNELS(random, {"uniform_random", uniform_candidates}, {"normal_random", normal_candidates})

}  // namespace bonfire::cpu
