#pragma once
// GPT-2 with its language-model head, under Hugging Face's parameter names (transformer.h.0.attn.c_attn.weight, …). The
// head's weight is the table of tokens.
//
//   models::GPT2LMHeadModel model = models::gpt2();                              // 124M
//   Tensor logits = model(tokens);                                               // of the token after each
//   auto small = models::gpt2({.vocabulary = 256, .layers = 4, .heads = 4, .width = 128, .context = 256});

#include <memory>

#include "bonfire/nn/module.h"

namespace bonfire::models {

struct GPT2Options {
  int64_t vocabulary = 50257;
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t width = 768;     // elements of a token
  int64_t context = 1024;  // tokens of the longest text
  double dropout = 0.1;    // of embeddings, of what attention and the layers after it give, of attention's weights
  // Rows of the head's product are made up to a multiple of this, with zeros that nobody sees: neither the logits nor
  // the state dict have them. 0: 64 on a GPU, whose matrix units want it, else none.
  int64_t head_multiple = 0;
};

class GPT2LMHeadModel : public nn::Callable<GPT2LMHeadModel> {
 public:
  explicit GPT2LMHeadModel(const GPT2Options& options);

  Tensor forward(const Tensor& tokens) const;  // i64 [N, T] → [N, T, vocabulary]; ShapeError for T above context
  // Of these places only, which count over [N · T]: i64 [M] → [M, vocabulary].
  Tensor logits_at(const Tensor& tokens, const Tensor& places) const;

 private:
  Tensor head(const Tensor& states) const;  // [M, width] → [M, vocabulary]

  struct Parts;
  std::shared_ptr<const Parts> parts_;
};

inline GPT2LMHeadModel gpt2(const GPT2Options& options = {}) { return GPT2LMHeadModel(options); }

}  // namespace bonfire::models
