#include "bonfire/models/gpt2.h"

#include <fmt/core.h>

#include <cmath>

#include "bonfire/base/error.h"
#include "bonfire/nn/activation.h"
#include "bonfire/nn/embedding.h"
#include "bonfire/nn/linear.h"
#include "bonfire/nn/module_list.h"
#include "bonfire/nn/norm.h"
#include "bonfire/nn/sizes.h"
#include "bonfire/ops/attention.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/indexing.h"
#include "bonfire/ops/matmul.h"
#include "bonfire/ops/shape_ops.h"

namespace bonfire::models {

namespace {

constexpr double kFirstDeviation = 0.02;  // of all first weights
constexpr int64_t kGpuMultiple = 64;      // of the rows of the head, on a GPU

nn::Embedding make_table(int64_t rows, int64_t size) {
  return nn::Embedding({.rows = rows, .size = size, .weight_init = nn::init::normal(kFirstDeviation)});
}

// What each half of a layer adds to the sum that goes through all layers begins the smaller, the more halves there are.
double deviation_of_added(const GPT2Options& options) {
  return kFirstDeviation / std::sqrt(2 * static_cast<double>(options.layers));
}

// A linear layer whose weight is [in, out].
class Conv1D : public nn::Callable<Conv1D> {
 public:
  Conv1D(int64_t in, int64_t out, double deviation = kFirstDeviation)
      : Callable("Conv1D"), weight_(Variable({{in, out}, DType::f32, {}})), bias_(Variable({{out}, DType::f32, {}})) {
    nn::init::apply(nn::init::normal(deviation), {}, weight_);
    register_parameter("weight", weight_);
    register_parameter("bias", bias_);
    set_details(fmt::format("nf={}, nx={}", out, in));
  }

  Tensor forward(const Tensor& x) const { return matmul(x, weight_) + bias_; }

 private:
  Parameter weight_, bias_;
};

class CausalAttention : public nn::Callable<CausalAttention> {
 public:
  explicit CausalAttention(const GPT2Options& options)
      : Callable("GPT2Attention"),
        heads_(options.heads),
        dropped_(options.dropout),
        c_attn_(register_module("c_attn", Conv1D(options.width, 3 * options.width))),
        c_proj_(register_module("c_proj", Conv1D(options.width, options.width, deviation_of_added(options)))),
        dropout_(options.dropout) {
    register_module("attn_dropout", nn::Dropout(options.dropout));
    dropout_ = register_module("resid_dropout", dropout_);
  }

  Tensor forward(const Tensor& x) const {  // [N, T, width]
    const int64_t samples = x.size(0), length = x.size(1), width = x.size(2);
    const Tensor all = permute(reshape(c_attn_(x), {samples, length, 3, heads_, width / heads_}), {2, 0, 3, 1, 4});
    const std::vector<Tensor> qkv = split(all, 1, 0);  // [1, N, heads, T, width / heads] each
    const Tensor mixed = scaled_dot_product_attention(squeeze(qkv[0], 0), squeeze(qkv[1], 0), squeeze(qkv[2], 0),
                                                      {.causal = true, .dropout = training() ? dropped_ : 0});
    return dropout_(c_proj_(flatten(permute(mixed, {0, 2, 1, 3}), 2)));
  }

 private:
  int64_t heads_;
  double dropped_;
  Conv1D c_attn_, c_proj_;
  nn::Dropout dropout_;
};

class FeedForward : public nn::Callable<FeedForward> {
 public:
  explicit FeedForward(const GPT2Options& options)
      : Callable("GPT2MLP"),
        c_fc_(register_module("c_fc", Conv1D(options.width, 4 * options.width))),
        c_proj_(register_module("c_proj", Conv1D(4 * options.width, options.width, deviation_of_added(options)))),
        act_(register_module("act", nn::Activation("NewGELUActivation", gelu_tanh))),
        dropout_(register_module("dropout", nn::Dropout(options.dropout))) {}

  Tensor forward(const Tensor& x) const { return dropout_(c_proj_(act_(c_fc_(x)))); }

 private:
  Conv1D c_fc_, c_proj_;
  nn::Activation act_;
  nn::Dropout dropout_;
};

class Block : public nn::Callable<Block> {
 public:
  explicit Block(const GPT2Options& options)
      : Callable("GPT2Block"),
        ln_1_(register_module("ln_1", nn::LayerNorm({.shape = {options.width}}))),
        attn_(register_module("attn", CausalAttention(options))),
        ln_2_(register_module("ln_2", nn::LayerNorm({.shape = {options.width}}))),
        mlp_(register_module("mlp", FeedForward(options))) {}

  Tensor forward(const Tensor& x) const {
    const Tensor seen = x + attn_(ln_1_(x));
    return seen + mlp_(ln_2_(seen));
  }

 private:
  nn::LayerNorm ln_1_;
  CausalAttention attn_;
  nn::LayerNorm ln_2_;
  FeedForward mlp_;
};

class Transformer : public nn::Callable<Transformer> {
 public:
  explicit Transformer(const GPT2Options& options)
      : Callable("GPT2Model"),
        wte(register_module("wte", make_table(options.vocabulary, options.width))),
        context_(options.context),
        wpe_(register_module("wpe", make_table(options.context, options.width))),
        drop_(register_module("drop", nn::Dropout(options.dropout))),
        ln_f_({.shape = {options.width}}) {
    for (int64_t i = 0; i < options.layers; ++i) h_.push_back(Block(options));
    h_ = register_module("h", h_);
    ln_f_ = register_module("ln_f", ln_f_);
  }

  Tensor forward(const Tensor& tokens) const {  // i64 [N, T] → [N, T, width]
    if (tokens.rank() != 2 || tokens.size(1) > context_)
      throw_error<ShapeError>("[gpt2] tokens are {}, expected [N, T] with at most {} tokens in a row",
                              to_string(tokens.shape()), context_);
    // Place t has row t of its table.
    return ln_f_(blocks(drop_(wte(tokens) + slice(wpe_.weight, 0, 0, tokens.size(1)))));
  }

  nn::Embedding wte;

 private:
  Tensor blocks(Tensor x) const {
    PathScope scope(h_.name());
    for (const Block& block : h_) x = block(x);
    return x;
  }

  int64_t context_;
  nn::Embedding wpe_;
  nn::Dropout drop_;
  nn::ModuleList<Block> h_;
  nn::LayerNorm ln_f_;
};

GPT2Options checked(const GPT2Options& options) {
  nn::require_sizes("gpt2", {{"vocabulary", options.vocabulary},
                             {"layers", options.layers},
                             {"heads", options.heads},
                             {"width", options.width},
                             {"context", options.context}});
  if (options.width % options.heads != 0)
    throw_error<ConfigError>("[gpt2] {} heads cannot share a width of {}, expected a multiple of {}", options.heads,
                             options.width, options.heads);
  if (options.head_multiple < 0)
    throw_error<ConfigError>("[gpt2] head_multiple is {}, expected at least 0", options.head_multiple);
  return options;
}

}  // namespace

struct GPT2LMHeadModel::Parts {
  GPT2Options options;
  Transformer transformer;
  nn::Linear lm_head;
};

GPT2LMHeadModel::GPT2LMHeadModel(const GPT2Options& options) : Callable("GPT2LMHeadModel") {
  const Transformer transformer = register_module("transformer", Transformer(checked(options)));
  const nn::Linear lm_head = register_module("lm_head", nn::Linear(transformer.wte.weight, {}));
  parts_ = std::make_shared<const Parts>(Parts{options, transformer, lm_head});
  // Heads, and features between the two layers of a block. Weights are [in, out]; query, key and value are packed.
  set_splits({{"*.c_attn.weight", 1, 3},
              {"*.c_attn.bias", 0, 3},
              {"*.c_fc.weight", 1},
              {"*.c_fc.bias", 0},
              {"*.c_proj.weight", 0}});
}

Tensor GPT2LMHeadModel::head(const Tensor& states) const {
  PathScope scope("lm_head");
  const GPT2Options& options = parts_->options;
  int64_t multiple = options.head_multiple;
  if (multiple == 0) multiple = states.device().type == DeviceType::cuda ? kGpuMultiple : 1;
  const int64_t missing = (multiple - options.vocabulary % multiple) % multiple;
  if (missing == 0) return linear(states, parts_->lm_head.weight);
  return slice(linear(states, pad(parts_->lm_head.weight, {{0, missing}, {0, 0}})), -1, 0, options.vocabulary);
}

Tensor GPT2LMHeadModel::forward(const Tensor& tokens) const { return head(parts_->transformer(tokens)); }

Tensor GPT2LMHeadModel::logits_at(const Tensor& tokens, const Tensor& places) const {
  return head(index_select(flatten(parts_->transformer(tokens), 0, 1), 0, places));
}

}  // namespace bonfire::models
