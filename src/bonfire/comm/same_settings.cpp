#include "bonfire/comm/same_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "bonfire/base/error.h"
#include "bonfire/base/hash.h"
#include "bonfire/comm/wait_notice.h"

namespace bonfire::comm {

namespace {

using nlohmann::json;

// All keys, in the order in which ranks have them.
std::vector<std::string> keys_of(std::span<const Settings> of_ranks) {
  std::vector<std::string> keys;
  for (const Settings& settings : of_ranks)
    for (const auto& [key, value] : settings)
      if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
  return keys;
}

// Values in the order of the first rank that has each: "0.02 on rank 0 and 0.05 on ranks 1 and 2".
std::string values_in_words(std::span<const std::optional<std::string>> values) {
  std::vector<std::pair<std::string, std::vector<int>>> ranks_by_value;
  for (size_t rank = 0; rank < values.size(); ++rank) {
    const std::string value = values[rank].value_or("not there");
    auto known = std::ranges::find(ranks_by_value, value, [](const auto& one) { return one.first; });
    if (known == ranks_by_value.end()) known = ranks_by_value.insert(known, {value, {}});
    known->second.push_back(static_cast<int>(rank));
  }
  std::vector<std::string> words;
  for (const auto& [value, ranks] : ranks_by_value)
    words.push_back(fmt::format("{} on {}", value, list_of_ranks(ranks)));
  return fmt::format("{}", fmt::join(words, " and "));
}

// Who is done leaves, and takes its end of the connections along: nobody does before all have read.
void wait_until_all_have_read(Group& group) {
  try {
    group.barrier();
  } catch (const Error&) {  // somebody has left after all; what differs is known here
  }
}

}  // namespace

std::string encode(const Settings& settings) {
  return json(settings).dump(-1, ' ', false, json::error_handler_t::replace);
}

Settings decode_settings(const std::string& text) { return json::parse(text).get<Settings>(); }

std::string difference_in_words(std::span<const Settings> of_ranks) {
  constexpr size_t kNamed = 8;
  std::vector<std::map<std::string, std::string>> by_key;
  for (const Settings& settings : of_ranks) by_key.emplace_back(settings.begin(), settings.end());
  std::vector<std::string> differing;
  for (const std::string& key : keys_of(of_ranks)) {
    std::vector<std::optional<std::string>> values;
    for (const auto& settings : by_key) {
      auto found = settings.find(key);
      values.push_back(found == settings.end() ? std::nullopt : std::optional(found->second));
    }
    if (std::ranges::any_of(values, [&](const auto& value) { return value != values[0]; }))
      differing.push_back(fmt::format("{} is {}", key, values_in_words(values)));
  }
  const size_t more = differing.size() - std::min(kNamed, differing.size());
  differing.resize(differing.size() - more);
  return fmt::format("{}{}", fmt::join(differing, ", "), more > 0 ? fmt::format(", and {} more differ", more) : "");
}

std::vector<std::string> exchange_texts(Group& group, std::string mine) {
  auto size = static_cast<size_t>(group.size());
  auto length = static_cast<int64_t>(mine.size());
  std::vector<int64_t> lengths(size);
  group.all_gather({&length, 1, DType::i64}, {lengths.data(), size, DType::i64});
  auto longest = static_cast<size_t>(*std::max_element(lengths.begin(), lengths.end()));
  mine.resize(longest);
  std::string all(size * longest, '\0');
  group.all_gather({mine.data(), longest, DType::u8}, {all.data(), all.size(), DType::u8});
  std::vector<std::string> texts;
  for (size_t r = 0; r < size; ++r) texts.push_back(all.substr(r * longest, static_cast<size_t>(lengths[r])));
  return texts;
}

void require_same(Group& group, const std::string& what, const Settings& settings) {
  const std::string text = encode(settings);
  base::Hash128 hash;
  hash.mix(std::string_view(what));
  hash.mix(std::string_view(text));
  using Digest = std::array<uint64_t, 2>;
  const Digest mine{hash.low, hash.high};
  const auto size = static_cast<size_t>(group.size());
  std::vector<Digest> all(size);
  group.all_gather({mine.data(), mine.size(), DType::i64}, {all.data(), size * mine.size(), DType::i64});
  if (std::ranges::all_of(all, [&](const Digest& other) { return other == all[0]; })) return;

  const std::vector<std::string> subjects = exchange_texts(group, what), texts = exchange_texts(group, text);
  wait_until_all_have_read(group);
  std::vector<Settings> calls, of_ranks;
  for (size_t rank = 0; rank < size; ++rank) {
    calls.push_back({{"the call", subjects[rank]}});
    of_ranks.push_back(decode_settings(texts[rank]));
  }
  const std::string other_call = difference_in_words(calls);
  if (!other_call.empty())
    throw_error<ConfigError>("[{}] the ranks are at different places: {}; all ranks must make the same calls", what,
                             other_call);
  throw_error<ConfigError>("[{}] the ranks differ: {}; give all ranks the same", what, difference_in_words(of_ranks));
}

}  // namespace bonfire::comm
