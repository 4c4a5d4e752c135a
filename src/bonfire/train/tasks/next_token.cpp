#include "bonfire/train/tasks/next_token.h"

#include <cmath>

#include "bonfire/base/error.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/loss.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/ops/shape_ops.h"
#include "bonfire/train/tasks/running_text.h"
#include "bonfire/train/tasks/token_writer.h"

namespace bonfire::train {

namespace {

class NextTokenTask final : public Task {
 public:
  explicit NextTokenTask(int64_t vocabulary) : vocabulary_(vocabulary) {}

  std::string name() const override { return "next token"; }
  std::string unit() const override { return "sequences"; }
  Tensor loss(const Outputs& outputs, const Tensor& label) const override {
    return cross_entropy(logits(outputs), places(label));
  }
  Tensor targets(const Tensor& label) const override {  // data::kNotATarget is negative
    return sum(greater_equal(places(label), 0).to(DType::i64));
  }

  std::vector<Metric> metrics() const override {
    return {{.name = "perplexity", .brief = "ppl", .unit = Metric::Unit::number, .higher_is_better = false},
            {.name = "top1", .title = "top-1", .of = "next tokens", .brief = "acc", .quantity = "accuracy"}};
  }
  std::vector<Tensor> sums(const Outputs& outputs, const Tensor& label) const override {
    std::vector<Tensor> all = training_sums(outputs, label);
    all.push_back(top_k_correct(logits(outputs), places(label)));
    return all;
  }
  // Nothing may look at the logits but the loss, which stands here again and is computed once: then they never exist as
  // a whole (fuse_linear_cross_entropy).
  std::vector<Tensor> training_sums(const Outputs& outputs, const Tensor& label) const override {
    return {loss(outputs, label).to(DType::f32) * targets(label).to(DType::f32)};
  }
  std::vector<double> values(std::span<const double> sums, double targets) const override {
    std::vector<double> means = Task::values(sums, targets);
    if (!means.empty()) means[0] = std::exp(means[0]);
    return means;
  }

  std::string predict_hint() const override { return "\"a text to go on with\""; }
  std::string data_hint() const override { return "text of yours (docs/text.md)"; }

 private:
  Tensor logits(const Outputs& outputs) const {  // [N, T, vocabulary] → [N T, vocabulary]
    return reshape(outputs[0], {outputs[0].size(0) * outputs[0].size(1), vocabulary_});
  }
  static Tensor places(const Tensor& label) { return reshape(label, {label.shape().count()}); }

  int64_t vocabulary_;
};

OpenedData open_next_token(const Config& config) {
  Config others = config;  // test_share is for text files, too
  others.test_share = Config{}.test_share;
  refuse_image_settings(others);
  if (config.lower_case != Config{}.lower_case)
    throw_error<ConfigError>("[data] lower_case is for WordPiece, and {} reads text as it is; leave it out",
                             config.model);
  const RunningText text = open_running_text(config);
  const models::GPT2Options sizes = gpt2_options(config, text.pairs.size());
  OpenedData data;
  data.title = text.title;
  data.train = std::make_shared<data::TokenBlocks>(text.train, config.seq_length,
                                                   "the text to train on of " + data.title, text.train_range);
  data.test = std::make_shared<data::TokenBlocks>(text.test, config.seq_length, "the text to test of " + data.title,
                                                  text.test_range);
  note_content(data);
  data.classes = sizes.vocabulary;
  hold_back(config, data);
  data.model = {.vocabulary = sizes.vocabulary,
                .dropout = sizes.dropout,
                .layers = sizes.layers,
                .heads = sizes.heads,
                .width = sizes.width,
                .context = sizes.context};
  data.sample_bytes = 16 * static_cast<double>(config.seq_length);  // two numbers of 8 bytes a token
  data.task = std::make_shared<NextTokenTask>(sizes.vocabulary);
  return data;
}

}  // namespace

const KnownTask kNextToken{.name = "next_token",
                           .reads = "running text",
                           .input_name = "text",
                           .predict_help = "a text to go on with",
                           .open = open_next_token,
                           .writer = [](const std::filesystem::path& run, const std::filesystem::path& weights,
                                        std::span<const std::string> overrides) -> std::unique_ptr<Writer> {
                             return std::make_unique<TokenWriter>(run, weights, overrides);
                           }};

}  // namespace bonfire::train
