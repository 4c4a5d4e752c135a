#include "bonfire/train/tasks/masked_word_guesses.h"

#include <algorithm>
#include <numeric>

#include "bonfire/base/error.h"
#include "bonfire/nn/state_dict.h"
#include "bonfire/ops/softmax.h"
#include "bonfire/train/checkpoint/checkpoint.h"
#include "bonfire/train/data/open_data.h"

namespace bonfire::train {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMask = "[MASK]";

}  // namespace

MaskedWords::MaskedWords(const fs::path& run, std::span<const std::string> overrides)
    : config_(load_config(run / "config.yaml", overrides)),
      pieces_(open_vocabulary(config_)),
      place_(places_of(config_)[0]),
      model_(models::make(config_.model, {.vocabulary = pieces_.size()})) {
  nn::load_state_dict(model_.state_dict(), open_tensors(weights_in(run)));
  model_.to(place_);
  place(model_, config_.placement);
  model_.eval();
}

std::vector<std::vector<WordGuess>> MaskedWords::guesses(const std::string& sentence, size_t most) const {
  std::vector<int64_t> tokens{pieces_.beginning()};
  std::vector<size_t> masked;  // positions
  auto add = [&](std::string_view text) {
    for (int32_t token : pieces_.tokens(text)) tokens.push_back(token);
  };
  std::string_view rest = sentence;
  for (size_t at = rest.find(kMask); at != std::string_view::npos; at = rest.find(kMask)) {
    add(rest.substr(0, at));
    masked.push_back(tokens.size());
    tokens.push_back(pieces_.mask());
    rest.remove_prefix(at + kMask.size());
  }
  add(rest);
  tokens.push_back(pieces_.separator());
  auto length = static_cast<int64_t>(tokens.size());
  if (masked.empty())
    throw_error<ConfigError>("[predict] no {} in '{}': put it where a word is wanted", kMask, sentence);
  if (length > config_.seq_length)
    throw_error<ConfigError>(
        "[predict] {} pieces with [CLS] and [SEP], the run was trained on {}: shorten the sentence", length,
        config_.seq_length);

  NoGrad no_grad;
  auto vocabulary = static_cast<size_t>(pieces_.size());
  Tensor logits = model_(Tensor::from<int64_t>(tokens, {1, length}, place_)).to(DType::f32);  // [1, T, vocabulary]
  std::vector<float> values = logits.to_vector<float>(), shares = softmax(logits, -1).to_vector<float>();
  std::vector<std::vector<WordGuess>> all;
  for (size_t position : masked) {
    size_t row = position * vocabulary;
    std::vector<size_t> order(vocabulary);
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, [&](size_t a, size_t b) { return values[row + a] > values[row + b]; });
    order.resize(std::min(most, vocabulary));
    std::vector<WordGuess>& guesses = all.emplace_back();
    for (size_t piece : order)
      guesses.push_back({pieces_.piece(static_cast<int64_t>(piece)), shares[row + piece], values[row + piece]});
  }
  return all;
}

}  // namespace bonfire::train
