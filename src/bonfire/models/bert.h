#pragma once
// BERT with its masked-language-model head, under Hugging Face's parameter names
// (bert.encoder.layer.0.attention.self.query.weight, …). The decoder's weight is the table of word embeddings.

#include <memory>

#include "bonfire/nn/module.h"

namespace bonfire::models {

struct BertOptions {
  int64_t vocabulary = 30522;
  int64_t hidden = 768;  // elements of a token
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t intermediate = 3072;
  int64_t positions = 512;  // tokens of the longest text
  int64_t token_types = 2;
  double dropout = 0.1;
  double attention_dropout = 0.1;
};

struct BertInputs {
  Tensor token_types = {};     // i64 [N, T]; undefined: 0 everywhere
  Tensor attention_mask = {};  // [N, T], 0 for padding, which is not looked at; undefined: everything is
};

class BertForMaskedLM : public nn::Callable<BertForMaskedLM> {
 public:
  explicit BertForMaskedLM(const BertOptions& options);
  Tensor forward(const Tensor& tokens, const BertInputs& inputs = {}) const;  // i64 [N, T] → [N, T, vocabulary]

 private:
  struct Parts;
  std::shared_ptr<const Parts> parts_;
};

inline BertForMaskedLM bert_base(const BertOptions& options = {}) { return BertForMaskedLM(options); }

// Four layers of 256 with four heads, whatever the options say about those.
BertForMaskedLM bert_mini(BertOptions options = {});

}  // namespace bonfire::models
