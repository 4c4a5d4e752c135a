#include "bonfire/data/text.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/data/unicode.h"

namespace bonfire::data {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kFrame = 2;  // [CLS] and [SEP] of a sequence

Array array_of(const std::vector<int64_t>& values) {
  Array array{DType::i64, {static_cast<int64_t>(values.size())}, std::vector<std::byte>(8 * values.size())};
  std::memcpy(array.bytes.data(), values.data(), array.bytes.size());
  return array;
}

std::vector<int64_t> values_of(const Array& array) {
  std::vector<int64_t> values(array.bytes.size() / 8);
  std::memcpy(values.data(), array.bytes.data(), array.bytes.size());
  return values;
}

class RowOfLines {
 public:
  RowOfLines(const WordPiece& pieces, std::string name) : pieces_(pieces), name_(std::move(name)) {}

  void add(std::string_view line) {
    ++lines_;
    if (auto bad = unicode::first_bad_byte(line))
      throw_error<DataError>("[text] {}: line {} is not UTF-8 at its byte {}; convert the file (iconv -t utf-8)", name_,
                             lines_, *bad + 1);
    std::vector<int32_t> tokens = pieces_.tokens(line);
    if (tokens.empty()) return;
    row_.insert(row_.end(), tokens.begin(), tokens.end());
    row_.push_back(pieces_.separator());
  }
  std::vector<int32_t> take() { return std::move(row_); }

 private:
  const WordPiece& pieces_;
  std::string name_;
  std::vector<int32_t> row_;
  int64_t lines_ = 0;
};

}  // namespace

Text::Text(std::vector<int32_t> row, int64_t length, const WordPiece& pieces, const std::string& name)
    : row_(std::move(row)), length_(length), beginning_(pieces.beginning()), separator_(pieces.separator()) {
  if (length <= kFrame)
    throw_error<ConfigError>(
        "[text] a sequence of {} tokens has no room between [CLS] and [SEP], expected at least {}; use a larger "
        "seq_length",
        length, kFrame + 1);
  if (static_cast<int64_t>(row_.size()) < length - kFrame)
    throw_error<DataError>("[text] {} has {} tokens, expected at least {} for one sequence; use a smaller seq_length",
                           name, row_.size(), length - kFrame);
}

int64_t Text::size() const {
  int64_t part = length_ - kFrame;
  return (static_cast<int64_t>(row_.size()) + part - 1) / part;
}

Sample Text::get(int64_t index) const {
  require_index(index);
  int64_t part = length_ - kFrame;
  auto from = static_cast<size_t>(std::min(index * part, static_cast<int64_t>(row_.size()) - part));
  std::vector<int64_t> tokens{beginning_};
  for (int32_t token : std::span(row_).subspan(from, static_cast<size_t>(part))) tokens.push_back(token);
  tokens.push_back(separator_);
  return {array_of(tokens), array_of(std::vector<int64_t>(tokens.size(), kNotATarget)), {}};
}

bool is_text(const fs::path& folder) { return base::exists(folder / "vocab.txt"); }

fs::path text_file(const fs::path& folder, Split split) {
  return folder / (split == Split::train ? "train.txt" : "test.txt");
}

void for_each_line(std::span<const std::byte> file, const std::function<void(std::string_view)>& visit) {
  std::string_view rest(reinterpret_cast<const char*>(file.data()), file.size());
  while (!rest.empty()) {
    size_t end = std::min(rest.find('\n'), rest.size());
    visit(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

std::shared_ptr<Text> text_of_lines(std::span<const std::string> lines, const WordPiece& pieces, int64_t length,
                                    const std::string& name) {
  RowOfLines row(pieces, name);
  for (const std::string& line : lines) row.add(line);
  return std::make_shared<Text>(row.take(), length, pieces, name);
}

std::shared_ptr<Text> load_text(const fs::path& file, const WordPiece& pieces, int64_t length) {
  base::MappedFile mapped(file);
  RowOfLines row(pieces, file.string());
  for_each_line(mapped.bytes(), [&](std::string_view line) { row.add(line); });
  return std::make_shared<Text>(row.take(), length, pieces, file.string());
}

Transform mask_tokens(const WordPiece& pieces, const MaskOptions& options) {
  if (!(options.share > 0 && options.share <= 1))
    throw_error<ConfigError>("[mask_tokens] share is {}, expected above 0, at most 1", options.share);
  return [options, mask = int64_t{pieces.mask()}, beginning = int64_t{pieces.beginning()},
          separator = int64_t{pieces.separator()}, vocabulary = pieces.size()](Sample& sample, const SampleKey& given) {
    SampleKey key = options.every_epoch ? given : given.in_epoch(0);
    std::vector<int64_t> tokens = values_of(sample.input), targets = values_of(sample.label);
    std::vector<size_t> open;  // positions that may be chosen
    for (size_t i = 0; i < tokens.size(); ++i)
      if (tokens[i] != beginning && tokens[i] != separator) open.push_back(i);
    auto wanted = static_cast<size_t>(std::llround(options.share * static_cast<double>(open.size())));
    wanted = std::clamp<size_t>(wanted, std::min<size_t>(1, open.size()), open.size());
    uint64_t drawn = 0;
    auto below = [&](size_t limit) {  // 0 … limit − 1
      return std::min(limit - 1, static_cast<size_t>(static_cast<double>(key.uniform(drawn++)) * double(limit)));
    };
    for (size_t i = 0; i < wanted; ++i) {  // the first steps of a shuffle
      std::swap(open[i], open[i + below(open.size() - i)]);
      size_t at = open[i];
      targets[at] = tokens[at];
      float way = key.uniform(drawn++);
      if (way < 0.8F)
        tokens[at] = mask;
      else if (way < 0.9F)
        tokens[at] = static_cast<int64_t>(below(static_cast<size_t>(vocabulary)));
    }
    sample.input = array_of(tokens);
    sample.label = array_of(targets);
  };
}

}  // namespace bonfire::data
