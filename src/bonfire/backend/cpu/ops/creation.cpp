// CPU kernels of ops/creation.h.

#include <algorithm>

#include "bonfire/kernel/kernel.h"

namespace bonfire::cpu {

namespace {

constexpr int64_t kGrain = 16384;  // elements worth a thread of their own

template <class T>
T from_integer(int64_t value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(value);
  } else {
    return static_cast<T>(static_cast<std::conditional_t<std::is_same_v<T, double>, double, float>>(value));
  }
}

std::vector<Candidate> constant(const KernelRequest& request) {
  int64_t count = request.node.outputs[0].shape.count(), value = request.node.attributes.integer("value");
  return dispatch(request.node.outputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return one_candidate(request, [count, element = from_integer<T>(value)](const Run& run) {
      T* target = run.output<T>();
      run.threads->parallel_for(count, kGrain,
                                [&](int64_t begin, int64_t end) { std::fill(target + begin, target + end, element); });
    });
  });
}

std::vector<Candidate> arange(const KernelRequest& request) {
  int64_t count = request.node.outputs[0].shape.count();
  int64_t first = request.node.attributes.integer("begin"), step = request.node.attributes.integer("step");
  return dispatch(request.node.outputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return one_candidate(request, [count, first, step](const Run& run) {
      T* target = run.output<T>();
      for (int64_t i = 0; i < count; ++i) target[i] = from_integer<T>(first + i * step);
    });
  });
}

[[maybe_unused]] const bool registered[] = {
    register_kernel("constant", DeviceType::cpu, constant),
    register_kernel("arange", DeviceType::cpu, arange),
};

}  // namespace

}  // namespace bonfire::cpu
