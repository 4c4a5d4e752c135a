#include "bonfire/graph/attributes.h"

#include <cstring>

#include "bonfire/base/error.h"

namespace bonfire {

void Attributes::add(const Item& item) {
  Entry entry{item.name, static_cast<uint32_t>(words_.size()), 1, item.kind};
  if (item.kind == Kind::list) {
    if (item.list.size() > kMostWords)
      throw_error<ShapeError>("attribute '{}' has {} numbers; at most {} can be given", item.name, item.list.size(),
                              kMostWords);
    entry.count = static_cast<uint32_t>(item.list.size()) & kMostWords;
    words_.append(item.list);
  } else {
    words_.push_back(item.word);
  }
  entries_.push_back(entry);
}

void Attributes::set(const Item& item) {
  const Entry* before = find(item.name);
  if (before == nullptr) {
    add(item);
    return;
  }
  if (item.kind != Kind::list && before->kind == item.kind) {
    words_[before->begin] = item.word;
    return;
  }
  Attributes kept;
  for (const Entry& entry : entries_) {
    if (std::string_view(entry.name) == item.name) continue;
    Entry moved = entry;
    moved.begin = static_cast<uint32_t>(kept.words_.size());
    for (uint32_t i = 0; i < entry.count; ++i) kept.words_.push_back(words_[entry.begin + i]);
    kept.entries_.push_back(moved);
  }
  kept.add(item);
  *this = std::move(kept);
}

const Attributes::Entry* Attributes::find(std::string_view name) const {
  for (const Entry& entry : entries_)
    if (entry.name == name.data()) return &entry;  // as a library's equal literals are one, this is seldom missed
  for (const Entry& entry : entries_)
    if (name == entry.name) return &entry;
  return nullptr;
}

const Attributes::Entry& Attributes::require(std::string_view name, Kind kind) const {
  const Entry* entry = find(name);
  BONFIRE_CHECK(entry != nullptr, "no attribute '{}' among: {}", name, to_string(*this));
  BONFIRE_CHECK(entry->kind == kind, "attribute '{}' has another kind: {}", name, to_string(*this));
  return *entry;
}

int64_t Attributes::integer(std::string_view name) const { return words_[require(name, Kind::integer).begin]; }

double Attributes::number(std::string_view name) const {
  return std::bit_cast<double>(words_[require(name, Kind::number).begin]);
}

DType Attributes::dtype(std::string_view name) const {
  return static_cast<DType>(words_[require(name, Kind::dtype).begin]);
}

std::span<const int64_t> Attributes::list(std::string_view name) const {
  const Entry& entry = require(name, Kind::list);
  return {words_.data() + entry.begin, entry.count};
}

void Attributes::mix_into(base::Hash128& hash) const {
  // Names are fixed by the op and the order of its entries, so kinds, counts and words suffice.
  for (const Entry& entry : entries_) hash.mix((static_cast<uint64_t>(entry.kind) << 32) | entry.count);
  for (int64_t word : words_) hash.mix(static_cast<uint64_t>(word));
}

bool operator==(const Attributes& a, const Attributes& b) {
  if (a.entries_.size() != b.entries_.size() || !(a.words_ == b.words_)) return false;
  for (size_t i = 0; i < a.entries_.size(); ++i) {
    const auto &x = a.entries_[i], &y = b.entries_[i];
    if (x.kind != y.kind || x.count != y.count || std::strcmp(x.name, y.name) != 0) return false;
  }
  return true;
}

std::string to_string(const Attributes& attributes) {
  std::string text;
  for (const auto& entry : attributes.entries_) {
    if (!text.empty()) text += ' ';
    text += entry.name;
    text += '=';
    const int64_t* words = attributes.words_.data() + entry.begin;
    switch (entry.kind) {
      case Attributes::Kind::integer: text += std::to_string(*words); break;
      case Attributes::Kind::number: text += fmt::format("{}", std::bit_cast<double>(*words)); break;
      case Attributes::Kind::dtype: text += name_of(static_cast<DType>(*words)); break;
      case Attributes::Kind::list:
        text += '[';
        for (uint32_t i = 0; i < entry.count; ++i) text += (i > 0 ? ", " : "") + std::to_string(words[i]);
        text += ']';
    }
  }
  return text;
}

}  // namespace bonfire
