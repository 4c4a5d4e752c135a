#include "bonfire/nn/lstm.h"

#include <cmath>

#include "bonfire/nn/init.h"
#include "bonfire/nn/python_text.h"
#include "bonfire/nn/sizes.h"

namespace bonfire::nn {

namespace {

std::string details_of(const LSTM::Options& options) {
  std::string text = fmt::format("{}, {}", options.input, options.hidden);
  if (options.layers != 1) text += fmt::format(", num_layers={}", options.layers);
  if (!options.bias) text += ", bias=False";
  if (options.batch_first) text += ", batch_first=True";
  if (options.dropout != 0) text += ", dropout=" + python_text(options.dropout);
  return text;
}

}  // namespace

LSTM::LSTM(const Options& options) : Callable("LSTM"), options_(options) {
  require_sizes("LSTM", {{"input", options.input}, {"hidden", options.hidden}, {"layers", options.layers}});
  double bound = 1 / std::sqrt(static_cast<double>(options.hidden));
  constexpr int64_t kGates = 4;  // input, forget, cell and output
  const int64_t gates = kGates * options.hidden;
  auto make = [&](const char* name, int64_t layer, const Shape& shape) {
    Parameter parameter(Variable({shape, DType::f32, {}}));
    init::apply({}, init::uniform(-bound, bound), parameter);
    parameter.set_packed(0, kGates);
    return register_parameter(fmt::format("{}_l{}", name, layer), parameter);
  };
  for (int64_t i = 0; i < options.layers; ++i) {
    Layer& layer = layers_.emplace_back();
    layer.weight_ih = make("weight_ih", i, {gates, i == 0 ? options.input : options.hidden});
    layer.weight_hh = make("weight_hh", i, {gates, options.hidden});
    if (!options.bias) continue;
    layer.bias_ih = make("bias_ih", i, {gates});
    layer.bias_hh = make("bias_hh", i, {gates});
  }
  set_details(details_of(options));
}

LstmResult LSTM::forward(const Tensor& x, const Tensor& h0, const Tensor& c0) const {
  std::vector<LstmWeights> weights;
  for (const Layer& layer : layers_) {
    LstmWeights& one = weights.emplace_back(LstmWeights{layer.weight_ih, layer.weight_hh, {}, {}});
    if (options_.bias) {
      one.b_ih = layer.bias_ih;
      one.b_hh = layer.bias_hh;
    }
  }
  return lstm(x, weights, h0, c0,
              {.batch_first = options_.batch_first, .dropout = options_.dropout, .training = training()});
}

}  // namespace bonfire::nn
