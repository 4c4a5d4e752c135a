#include "bonfire/nn/embedding.h"

#include "bonfire/base/error.h"
#include "bonfire/nn/sizes.h"
#include "bonfire/ops/indexing.h"

namespace bonfire::nn {

namespace {

init::Rule rule_of(const Embedding::Options& options) {
  init::Rule rule = options.weight_init ? options.weight_init : init::normal(1);
  return options.padding_index < 0 ? rule : init::with_zero_row(rule, options.padding_index);
}

Shape table_shape(const Embedding::Options& options) {
  require_sizes("Embedding", {{"rows", options.rows}, {"size", options.size}});
  return {options.rows, options.size};
}

}  // namespace

Embedding::Embedding(const Options& options)
    : Callable("Embedding"),
      weight(Variable({table_shape(options), DType::f32, {}})),
      padding_index_(options.padding_index) {
  if (padding_index_ < -1 || padding_index_ >= options.rows)
    throw_error<ConfigError>("[Embedding] padding_index is {}, expected -1 or a row below {}", padding_index_,
                             options.rows);
  init::apply({}, rule_of(options), weight);
  register_parameter("weight", weight);
  std::string details = fmt::format("{}, {}", options.rows, options.size);
  if (padding_index_ >= 0) details += fmt::format(", padding_idx={}", padding_index_);
  set_details(details);
}

Tensor Embedding::forward(const Tensor& ids) const { return embedding(weight, ids, {.padding_index = padding_index_}); }

}  // namespace bonfire::nn
