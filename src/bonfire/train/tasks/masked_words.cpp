#include "bonfire/train/tasks/masked_words.h"

#include "bonfire/base/error.h"
#include "bonfire/data/sentences.h"
#include "bonfire/data/text.h"
#include "bonfire/models/bert.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/loss.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/ops/shape_ops.h"
#include "bonfire/train/tasks/class_judge.h"
#include "bonfire/train/tasks/masked_word_guesses.h"

namespace bonfire::train {

namespace {

using data::Split;

class MaskedWordsTask final : public Task {
 public:
  explicit MaskedWordsTask(int64_t pieces) : pieces_(pieces) {}

  std::string name() const override { return "masked words"; }
  std::string unit() const override { return "sequences"; }
  Tensor loss(const Outputs& outputs, const Tensor& label) const override {
    return cross_entropy(logits(outputs), places(label));
  }
  Tensor targets(const Tensor& label) const override {  // data::kNotATarget is negative
    return sum(greater_equal(places(label), 0).to(DType::i64));
  }

  std::vector<Metric> metrics() const override { return class_metrics(pieces_, "masked words"); }
  std::vector<Tensor> sums(const Outputs& outputs, const Tensor& label) const override {
    return class_sums(logits(outputs), places(label));
  }
  // Nothing may look at the logits but the loss: then they never exist as a whole (fuse_linear_cross_entropy).
  std::vector<Tensor> training_sums(const Outputs&, const Tensor&) const override { return {}; }

  std::string predict_hint() const override { return "\"a sentence with [MASK] in it\""; }
  std::string data_hint() const override { return "text of yours (docs/text.md)"; }

 private:
  Tensor logits(const Outputs& outputs) const {  // [N, T, pieces] → [N T, pieces]
    return reshape(outputs[0], {outputs[0].size(0) * outputs[0].size(1), pieces_});
  }
  static Tensor places(const Tensor& label) { return reshape(label, {label.shape().count()}); }

  int64_t pieces_;
};

// vocab.txt, train.txt and test.txt of the folder; or the sentences that are built in.
OpenedData open_masked_text(const Config& config) {
  refuse_image_settings(config);
  if (const int64_t most = models::BertOptions{}.positions; config.seq_length > most)
    throw_error<ConfigError>("[data] seq_length is {}, and {} reads at most {} tokens; use a smaller one",
                             config.seq_length, config.model, most);
  OpenedData data;
  bool is_generated = config.data == "generated";
  std::filesystem::path folder = config.data;
  data::WordPiece pieces = open_vocabulary(config);
  auto load = [&](Split split) {
    if (is_generated) {
      int64_t lines = split == Split::train ? 16000 : 2000;
      return data::text_of_lines(data::sentences(split, lines), pieces, config.seq_length, "the generated text");
    }
    return data::load_text(data::text_file(folder, split), pieces, config.seq_length);
  };
  data.title = is_generated ? "generated sentences" : config.data;
  data.train = load(Split::train);
  data.test = load(Split::test);
  note_content(data);
  data.classes = pieces.size();
  hold_back(config, data);
  data.train_transform = data::mask_tokens(pieces, {.every_epoch = true});
  data.test_transform = data::mask_tokens(pieces);
  data.model = {.classes = data.classes, .in_channels = 1, .vocabulary = data.classes};
  data.sample_bytes = 16 * static_cast<double>(config.seq_length);  // two numbers of 8 bytes a token
  data.task = std::make_shared<MaskedWordsTask>(data.classes);
  return data;
}

class MaskedWordsAnswerer final : public Answerer {
 public:
  MaskedWordsAnswerer(const std::filesystem::path& run, std::span<const std::string> overrides)
      : words_(run, overrides) {}

  std::vector<Answer> answers(const std::string& input, size_t most) const override {
    std::vector<Answer> all;
    for (const std::vector<WordGuess>& guesses : words_.guesses(input, most)) {
      Answer& answer = all.emplace_back(Answer{input});
      for (const WordGuess& guess : guesses) answer.guesses.push_back({guess.piece, guess.probability, guess.logit});
    }
    return all;
  }

 private:
  MaskedWords words_;
};

}  // namespace

const KnownTask kMaskedWords{.name = "masked_words",
                             .reads = "text",
                             .input_name = "text",
                             .predict_help = "sentences with [MASK] in them",
                             .open = open_masked_text,
                             .answerer = [](const std::filesystem::path& run,
                                            std::span<const std::string> overrides) -> std::unique_ptr<Answerer> {
                               return std::make_unique<MaskedWordsAnswerer>(run, overrides);
                             }};

}  // namespace bonfire::train
