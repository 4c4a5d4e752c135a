#include "bonfire/models/bert.h"

#include "bonfire/base/error.h"
#include "bonfire/nn/activation.h"
#include "bonfire/nn/attention.h"
#include "bonfire/nn/embedding.h"
#include "bonfire/nn/linear.h"
#include "bonfire/nn/module_list.h"
#include "bonfire/nn/norm.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/shape_ops.h"

namespace bonfire::models {

namespace {

constexpr double kEps = 1e-12;
constexpr double kDeviation = 0.02;  // of all first weights

nn::Linear make_linear(int64_t in, int64_t out) {
  return nn::Linear(
      {.in = in, .out = out, .weight_init = nn::init::normal(kDeviation), .bias_init = nn::init::zeros()});
}

nn::Embedding make_embedding(int64_t rows, int64_t size, int64_t padding_index = -1) {
  return nn::Embedding(
      {.rows = rows, .size = size, .padding_index = padding_index, .weight_init = nn::init::normal(kDeviation)});
}

nn::LayerNorm make_norm(const BertOptions& options) { return nn::LayerNorm({.shape = {options.hidden}, .eps = kEps}); }

class Embeddings : public nn::Callable<Embeddings> {
 public:
  explicit Embeddings(const BertOptions& options)
      : Callable("BertEmbeddings"),
        words(register_module("word_embeddings", make_embedding(options.vocabulary, options.hidden, 0))),
        positions_(register_module("position_embeddings", make_embedding(options.positions, options.hidden))),
        token_types_(register_module("token_type_embeddings", make_embedding(options.token_types, options.hidden))),
        norm_(register_module("LayerNorm", make_norm(options))),
        dropout_(register_module("dropout", nn::Dropout(options.dropout))) {}

  Tensor forward(const Tensor& tokens, const Tensor& token_types) const {  // i64 [N, T] → [N, T, hidden]
    int64_t length = tokens.size(1);
    Tensor position = positions_(arange(0, length, {.device = tokens.device()}));  // [T, hidden]
    Tensor type = token_types_(token_types.defined() ? token_types : zeros({1}, DType::i64, tokens.device()));
    return dropout_(norm_(words(tokens) + type + position));
  }

  nn::Embedding words;

 private:
  nn::Embedding positions_, token_types_;
  nn::LayerNorm norm_;
  nn::Dropout dropout_;
};

class SelfAttention : public nn::Callable<SelfAttention> {
 public:
  explicit SelfAttention(const BertOptions& options)
      : Callable("BertSelfAttention"),
        heads_(options.heads),
        dropout_(options.attention_dropout),
        query_(register_module("query", make_linear(options.hidden, options.hidden))),
        key_(register_module("key", make_linear(options.hidden, options.hidden))),
        value_(register_module("value", make_linear(options.hidden, options.hidden))) {}

  Tensor forward(const Tensor& x, const Tensor& mask) const {
    return nn::multihead_attention(query_(x), key_(x), value_(x), heads_, {.mask = mask}, training() ? dropout_ : 0);
  }

 private:
  int64_t heads_;
  double dropout_;
  nn::Linear query_, key_, value_;
};

// What ends both halves of a layer: LayerNorm(residual + dropout(dense(x))).
class Output : public nn::Callable<Output> {
 public:
  Output(const char* kind, int64_t in, const BertOptions& options)
      : Callable(kind),
        dense_(register_module("dense", make_linear(in, options.hidden))),
        norm_(register_module("LayerNorm", make_norm(options))),
        dropout_(register_module("dropout", nn::Dropout(options.dropout))) {}

  Tensor forward(const Tensor& x, const Tensor& residual) const { return norm_(dropout_(dense_(x)) + residual); }

 private:
  nn::Linear dense_;
  nn::LayerNorm norm_;
  nn::Dropout dropout_;
};

class Attention : public nn::Callable<Attention> {
 public:
  explicit Attention(const BertOptions& options)
      : Callable("BertAttention"),
        self_(register_module("self", SelfAttention(options))),
        output_(register_module("output", Output("BertSelfOutput", options.hidden, options))) {}

  Tensor forward(const Tensor& x, const Tensor& mask) const { return output_(self_(x, mask), x); }

 private:
  SelfAttention self_;
  Output output_;
};

class Intermediate : public nn::Callable<Intermediate> {
 public:
  explicit Intermediate(const BertOptions& options)
      : Callable("BertIntermediate"),
        dense_(register_module("dense", make_linear(options.hidden, options.intermediate))) {}

  Tensor forward(const Tensor& x) const { return gelu(dense_(x)); }

 private:
  nn::Linear dense_;
};

class Layer : public nn::Callable<Layer> {
 public:
  explicit Layer(const BertOptions& options)
      : Callable("BertLayer"),
        attention_(register_module("attention", Attention(options))),
        intermediate_(register_module("intermediate", Intermediate(options))),
        output_(register_module("output", Output("BertOutput", options.intermediate, options))) {}

  Tensor forward(const Tensor& x, const Tensor& mask) const {
    Tensor seen = attention_(x, mask);
    return output_(intermediate_(seen), seen);
  }

 private:
  Attention attention_;
  Intermediate intermediate_;
  Output output_;
};

class Encoder : public nn::Callable<Encoder> {
 public:
  explicit Encoder(const BertOptions& options) : Callable("BertEncoder") {
    for (int64_t i = 0; i < options.layers; ++i) layers_.push_back(Layer(options));
    layers_ = register_module("layer", layers_);
  }

  Tensor forward(const Tensor& x, const Tensor& mask) const {
    PathScope scope(layers_.name());
    Tensor y = x;
    for (const Layer& layer : layers_) y = layer(y, mask);
    return y;
  }

 private:
  nn::ModuleList<Layer> layers_;
};

class BertModel : public nn::Callable<BertModel> {
 public:
  explicit BertModel(const BertOptions& options)
      : Callable("BertModel"),
        embeddings(register_module("embeddings", Embeddings(options))),
        encoder_(register_module("encoder", Encoder(options))) {}

  Tensor forward(const Tensor& tokens, const BertInputs& inputs) const {
    if (tokens.rank() != 2) throw_error<ShapeError>("[bert] tokens are {}, expected [N, T]", to_string(tokens.shape()));
    Tensor mask;
    if (inputs.attention_mask.defined())
      mask = reshape(not_equal(inputs.attention_mask, 0), {tokens.size(0), 1, 1, tokens.size(1)});
    return encoder_(embeddings(tokens, inputs.token_types), mask);
  }

  Embeddings embeddings;

 private:
  Encoder encoder_;
};

class Transform : public nn::Callable<Transform> {
 public:
  explicit Transform(const BertOptions& options)
      : Callable("BertPredictionHeadTransform"),
        dense_(register_module("dense", make_linear(options.hidden, options.hidden))),
        norm_(register_module("LayerNorm", make_norm(options))) {}

  Tensor forward(const Tensor& x) const { return norm_(gelu(dense_(x))); }

 private:
  nn::Linear dense_;
  nn::LayerNorm norm_;
};

class Predictions : public nn::Callable<Predictions> {
 public:
  Predictions(const BertOptions& options, const Parameter& words)
      : Callable("BertLMPredictionHead"),
        bias_(register_parameter("bias", Parameter(Variable({{options.vocabulary}, DType::f32, {}})))),
        transform_(register_module("transform", Transform(options))),
        decoder_(register_module("decoder", nn::Linear(words, bias_))) {}

  Tensor forward(const Tensor& x) const { return decoder_(transform_(x)); }

 private:
  Parameter bias_;
  Transform transform_;
  nn::Linear decoder_;
};

class Head : public nn::Callable<Head> {
 public:
  Head(const BertOptions& options, const Parameter& words)
      : Callable("BertOnlyMLMHead"), predictions_(register_module("predictions", Predictions(options, words))) {}

  Tensor forward(const Tensor& x) const { return predictions_(x); }

 private:
  Predictions predictions_;
};

}  // namespace

struct BertForMaskedLM::Parts {
  BertModel bert;
  Head cls;
};

BertForMaskedLM::BertForMaskedLM(const BertOptions& options) : Callable("BertForMaskedLM") {
  BertModel bert = register_module("bert", BertModel(options));
  Head cls = register_module("cls", Head(options, bert.embeddings.words.weight));
  parts_ = std::make_shared<const Parts>(Parts{bert, cls});
  // Heads, and features between the two layers of a block; the vocabulary, where ranks can share it.
  std::vector<nn::Split> splits{{"*.output.dense.weight", 1},
                                {"bert.embeddings.word_embeddings.weight", 0},
                                {"cls.predictions.bias", 0},
                                {"*.intermediate.dense.weight", 0},
                                {"*.intermediate.dense.bias", 0}};
  for (const char* part : {"query", "key", "value"})
    for (const char* name : {"weight", "bias"}) splits.push_back({fmt::format("*.self.{}.{}", part, name), 0});
  set_splits(std::move(splits));
}

Tensor BertForMaskedLM::forward(const Tensor& tokens, const BertInputs& inputs) const {
  return parts_->cls(parts_->bert(tokens, inputs));
}

BertForMaskedLM bert_mini(BertOptions options) {
  options.hidden = 256;
  options.layers = 4;
  options.heads = 4;
  options.intermediate = 1024;
  return BertForMaskedLM(options);
}

}  // namespace bonfire::models
