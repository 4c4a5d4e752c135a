#include "bonfire/train/tasks/running_text.h"

#include <fmt/format.h>

#include <cmath>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/data/sentences.h"
#include "bonfire/data/text.h"

namespace bonfire::train {

namespace {

namespace fs = std::filesystem;
using data::Split;

constexpr int64_t kLines = 16000, kTestLines = 2000;  // of the text that is built in

data::TokenBlocks::Row built_in(const data::BytePairs& pairs, Split split) {
  std::string text;
  for (const std::string& line : data::sentences(split, split == Split::train ? kLines : kTestLines))
    text += line + "\n";
  return std::make_shared<const std::vector<int32_t>>(pairs.tokens(text));
}

// The end of the row is tested on.
void split_row(const Config& config, RunningText& text) {
  text.test = text.train;
  const auto all = static_cast<double>(text.train->size());
  text.train_range.end = text.test_range.begin = static_cast<int64_t>(std::floor(all * (1 - config.test_share)));
}

}  // namespace

data::BytePairs open_byte_pairs(const Config& config) {
  if (config.data == "generated") return {};
  const fs::path place = config.data;
  return data::BytePairs::in(base::is_folder(place) ? place : place.parent_path());
}

RunningText open_running_text(const Config& config) {
  RunningText text;
  const fs::path place = config.data, train = data::text_file(place, Split::train),
                 test = data::text_file(place, Split::test);
  text.pairs = open_byte_pairs(config);
  bool has_test = true;
  if (config.data == "generated") {
    text.train = built_in(text.pairs, Split::train);
    text.test = built_in(text.pairs, Split::test);
  } else if (base::kind_of(place) == base::PathKind::file) {
    text.train = data::load_tokens(place, text.pairs);
    has_test = false;
  } else if (base::kind_of(train) == base::PathKind::file) {
    has_test = base::exists(test);
    text.train = data::load_tokens(train, text.pairs);
    if (has_test) text.test = data::load_tokens(test, text.pairs);
  } else {
    throw_error<DataError>(
        "[data] {} reads running text, and '{}' is neither a text file nor a folder with a train.txt; data=generated "
        "is built in",
        config.model, config.data);
  }
  if (has_test && config.test_share != Config{}.test_share)
    throw_error<ConfigError>("[data] test_share has no effect: {} has a test part of its own; leave it out",
                             config.data == "generated" ? "the text that is built in" : config.data);
  if (!has_test) split_row(config, text);
  const std::string tokens = text.pairs.is_bytes() ? "bytes" : fmt::format("{} pieces", text.pairs.size());
  text.title = fmt::format("{} ({})", config.data == "generated" ? "generated sentences" : config.data, tokens);
  return text;
}

models::GPT2Options gpt2_options(const Config& config, int64_t vocabulary) {
  models::GPT2Options options{.vocabulary = vocabulary};
  options.layers = config.layers.value_or(options.layers);
  options.heads = config.heads.value_or(options.heads);
  options.width = config.width.value_or(options.width);
  options.context = config.context.value_or(options.context);
  options.dropout = config.dropout.value_or(options.dropout);
  if (config.seq_length > options.context)
    throw_error<ConfigError>(
        "[data] seq_length is {}, above the model's context of {}; use a smaller one, or a larger "
        "context",
        config.seq_length, options.context);
  return options;
}

}  // namespace bonfire::train
