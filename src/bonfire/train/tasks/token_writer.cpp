#include "bonfire/train/tasks/token_writer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "bonfire/base/error.h"
#include "bonfire/base/random.h"
#include "bonfire/nn/init.h"
#include "bonfire/nn/state_dict.h"
#include "bonfire/train/checkpoint/checkpoint.h"

namespace bonfire::train {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kShortest = 32;  // tokens that the model sees at least, with filler

models::GPT2LMHeadModel make_model(const Config& config, int64_t vocabulary) {
  const nn::init::Skip skip;  // the weights come from a file
  return models::gpt2(gpt2_options(config, vocabulary));
}

void check(const WritingOptions& options) {
  if (options.tokens < 1) throw_error<ConfigError>("[predict] tokens is {}, expected at least 1", options.tokens);
  if (!(options.temperature >= 0 && std::isfinite(options.temperature)))
    throw_error<ConfigError>("[predict] temperature is {}, expected 0 (the likeliest token) or more",
                             options.temperature);
  if (options.top_k < 0)
    throw_error<ConfigError>("[predict] top_k is {}, expected 0 (all tokens) or more", options.top_k);
  if (options.top_k > 0 && options.temperature == 0)
    throw_error<ConfigError>("[predict] top_k has no effect without a temperature; add one, or leave it out");
}

}  // namespace

TokenWriter::TokenWriter(const fs::path& run, const fs::path& weights, std::span<const std::string> overrides)
    : config_(load_config(run / "config.yaml", overrides)),
      pairs_(open_byte_pairs(config_)),
      place_(places_of(config_)[0]),
      model_(make_model(config_, pairs_.size())) {
  nn::load_state_dict(model_.state_dict(), open_tensors(weights_in(weights.empty() ? run : weights)));
  model_.to(place_);
  model_.eval();
}

std::vector<float> TokenWriter::logits(std::span<const int32_t> tokens) const {
  const auto seen = tokens.last(std::min(tokens.size(), static_cast<size_t>(config_.seq_length)));
  const auto count = static_cast<int64_t>(seen.size());
  int64_t length = std::min(kShortest, config_.seq_length);
  while (length < count) length = std::min(2 * length, config_.seq_length);
  std::vector<int64_t> filled(static_cast<size_t>(length), 0);
  std::copy(seen.begin(), seen.end(), filled.begin());
  NoGrad no_grad;
  const std::vector<int64_t> last{count - 1};
  return model_.logits_at(Tensor::from<int64_t>(filled, {1, length}, place_), Tensor::from<int64_t>(last, {1}, place_))
      .to(DType::f32)
      .to_vector<float>();
}

int64_t TokenWriter::write(const std::string& prompt, const WritingOptions& options,
                           const std::function<void(std::string_view)>& sink) const {
  check(options);
  std::vector<int32_t> tokens = pairs_.tokens(prompt);
  if (tokens.empty() && pairs_.end_of_text()) tokens.push_back(*pairs_.end_of_text());  // where a text begins
  if (tokens.empty()) throw_error<ConfigError>("[predict] the prompt is empty; give some text to go on with");
  for (int64_t written = 0; written < options.tokens; ++written) {
    const auto token = static_cast<int32_t>(choose_token(logits(tokens), options, static_cast<uint64_t>(written)));
    if (pairs_.end_of_text() == token) return written;
    sink(pairs_.bytes_of(token));
    tokens.push_back(token);
  }
  return options.tokens;
}

int64_t choose_token(std::span<const float> logits, const WritingOptions& options, uint64_t number) {
  BONFIRE_CHECK(!logits.empty());
  if (options.temperature == 0) return std::max_element(logits.begin(), logits.end()) - logits.begin();
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (options.top_k > 0 && static_cast<size_t>(options.top_k) < order.size()) {
    const auto end = order.begin() + static_cast<std::ptrdiff_t>(options.top_k);
    std::partial_sort(order.begin(), end, order.end(),
                      [&](size_t a, size_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
    order.erase(end, order.end());
  }
  float most = logits[order[0]];
  for (size_t token : order) most = std::max(most, logits[token]);
  std::vector<double> sums;  // of the weights up to each
  double sum = 0;
  for (size_t token : order) sums.push_back(sum += std::exp((logits[token] - most) / options.temperature));
  const double drawn = static_cast<double>(uniform_at(options.seed, 0, number)) * sum;
  const auto found = std::upper_bound(sums.begin(), sums.end(), drawn);
  return static_cast<int64_t>(order[static_cast<size_t>(std::min(found, sums.end() - 1) - sums.begin())]);
}

}  // namespace bonfire::train
