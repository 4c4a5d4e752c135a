#include "bonfire/kernel/without_cuda.h"

#include <algorithm>

namespace bonfire {

namespace {

constexpr std::string_view kWithoutCuda[] = {
    "arange",
    "attention",
    "attention_gradient",
    "embedding_gradient_add",
    "linear_cross_entropy",
    "lstm_layer",
    "lstm_layer_gradient",
    "put_slice",
    "sum_as_f32",
};
static_assert(std::is_sorted(std::begin(kWithoutCuda), std::end(kWithoutCuda)));

}  // namespace

std::span<const std::string_view> ops_without_cuda_kernel() { return kWithoutCuda; }

bool is_without_cuda_kernel(std::string_view op) {
  return std::binary_search(std::begin(kWithoutCuda), std::end(kWithoutCuda), op);
}

}  // namespace bonfire
