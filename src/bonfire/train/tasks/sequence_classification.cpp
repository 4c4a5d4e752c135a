#include "bonfire/train/tasks/sequence_classification.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include "bonfire/base/error.h"
#include "bonfire/data/sequences.h"
#include "bonfire/ops/softmax.h"
#include "bonfire/train/checkpoint/checkpoint.h"
#include "bonfire/train/data/image_run.h"
#include "bonfire/train/tasks/classification.h"

namespace bonfire::train {

namespace {

using data::Split;

std::string words_of(const data::Sample& sample) {
  std::vector<int64_t> tokens(sample.input.bytes.size() / sizeof(int64_t));
  std::memcpy(tokens.data(), sample.input.bytes.data(), sample.input.bytes.size());
  std::vector<std::string> words;
  for (int64_t token : tokens) words.push_back(data::Sequences::symbols()[static_cast<size_t>(token)]);
  return fmt::format("{}", fmt::join(words, " "));
}

OpenedData open_sequences(const Config& config) {
  refuse_image_settings(config);
  require_generated(config, "sequences with a rule");
  if (config.lower_case != Config{}.lower_case)
    throw_error<ConfigError>("[data] lower_case is for text, and {} reads sequences of symbols; leave it out",
                             config.model);
  OpenedData data;
  data.title = "generated sequences";
  data.train = std::make_shared<data::Sequences>(data::SequencesOptions{.length = config.seq_length});
  data.test = std::make_shared<data::Sequences>(
      data::SequencesOptions{.split = Split::test, .size = 1000, .length = config.seq_length});
  data.class_names = data.train->class_names();
  data.classes = static_cast<int64_t>(data.class_names.size());
  note_content(data);
  hold_back(config, data);
  data.model = {.classes = data.classes, .vocabulary = static_cast<int64_t>(data::Sequences::symbols().size())};
  data.sample_bytes = 8 * static_cast<double>(config.seq_length + 1);
  data.task = classification({.classes = data.classes, .unit = "sequences", .words = words_of});
  return data;
}

class SequenceAnswerer final : public Answerer {
 public:
  SequenceAnswerer(const std::filesystem::path& run, std::span<const std::string> overrides)
      : config_(load_config(run / "config.yaml", overrides)),
        data_(open_sequences(config_)),
        place_(places_of(config_)[0]),
        model_(models::make(config_.model, data_.model)) {
    nn::load_state_dict(model_.state_dict(), open_tensors(weights_in(run)));
    model_.to(place_);
    place(model_, config_.placement);
    model_.eval();
  }

  std::vector<Answer> answers(const std::string& input, size_t most) const override {
    NoGrad no_grad;
    const std::vector<int64_t> tokens = tokens_of(input);
    const Tensor logits =
        model_(Tensor::from<int64_t>(tokens, {1, static_cast<int64_t>(tokens.size())}, place_)).to(DType::f32);
    const Tensor shares = softmax(logits, -1);
    Answer answer{input};
    for (const Guess& guess : likeliest(logits.to_vector<float>(), shares.to_vector<float>(), most))
      answer.guesses.push_back(
          {data_.class_names[static_cast<size_t>(guess.label)], guess.probability, guess.logit, guess.label});
    return {answer};
  }

 private:
  static std::vector<int64_t> tokens_of(const std::string& input) {
    const std::span<const std::string> symbols = data::Sequences::symbols();
    std::vector<int64_t> tokens;
    std::istringstream words(input);
    for (std::string word; words >> word;) {
      const auto found = std::ranges::find(symbols, word);
      if (found == symbols.end())
        throw_error<ConfigError>("[predict] '{}' is none of the symbols that the run was trained on: {}", word,
                                 fmt::join(symbols, " "));
      tokens.push_back(found - symbols.begin());
    }
    if (tokens.empty())
      throw_error<ConfigError>("[predict] '{}' has no symbols, expected some with spaces between them: {}", input,
                               fmt::join(symbols, " "));
    return tokens;
  }

  Config config_;
  OpenedData data_;
  Device place_;
  models::Model model_;
};

}  // namespace

const KnownTask kSequenceClassification{
    .name = "sequence_classification",
    .reads = "sequences of symbols",
    .input_name = "text",
    .predict_help = "symbols with spaces between them (\"f a > b\")",
    .open = open_sequences,
    .answerer = [](const std::filesystem::path& run, std::span<const std::string> overrides)
        -> std::unique_ptr<Answerer> { return std::make_unique<SequenceAnswerer>(run, overrides); }};

}  // namespace bonfire::train
