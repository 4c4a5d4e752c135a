#include "bonfire/comm/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "bonfire/base/error.h"
#include "bonfire/base/hash.h"
#include "bonfire/comm/all_reduce.h"
#include "bonfire/comm/reduce.h"
#include "bonfire/comm/same_settings.h"

namespace bonfire::comm {
namespace {

using Items = std::vector<Sequence::Item>;

base::Hash128 hash_of(const Sequence& sequence) {
  base::Hash128 hash;
  for (const Sequence::Item& item : sequence.items) {
    hash.mix(static_cast<uint64_t>(item.call));
    hash.mix(std::string_view(item.what));
  }
  return hash;
}

// As text: "0\tmean of fc.weight (f32 [10, 144])\n" and so on.
std::string encode(const Items& items) {
  std::string text;
  for (const Sequence::Item& item : items) text += fmt::format("{}\t{}\n", item.call, item.what);
  return text;
}

Items decode(std::string_view text) {
  Items items;
  while (!text.empty()) {
    size_t tab = text.find('\t'), end = text.find('\n');
    int call = 0;
    std::from_chars(text.data(), text.data() + tab, call);
    items.push_back({call, std::string(text.substr(tab + 1, end - tab - 1))});
    text.remove_prefix(end + 1);
  }
  return items;
}

// What only `a` has, at most three of them by name.
std::string missing_in(const Items& b, const Items& a) {
  std::vector<std::string> only;
  for (const Sequence::Item& item : a)
    if (std::none_of(b.begin(), b.end(), [&](const Sequence::Item& other) { return other.what == item.what; }))
      only.push_back(item.what);
  constexpr size_t kNamed = 3;
  std::string text = fmt::format("{}", fmt::join(only.begin(), only.begin() + std::min(kNamed, only.size()), ", "));
  return only.size() > kNamed ? text + fmt::format(" and {} more", only.size() - kNamed) : text;
}

std::string difference(const Items& first, const Items& other, size_t rank) {
  std::string only_first = missing_in(other, first), only_other = missing_in(first, other);
  std::string text;
  if (!only_first.empty()) text = fmt::format("rank 0 takes part in the {}, rank {} does not", only_first, rank);
  if (!only_other.empty())
    text += fmt::format("{}rank {} takes part in the {}, rank 0 does not", text.empty() ? "" : "; ", rank, only_other);
  if (!text.empty()) return text + ": all ranks must go back through the same models";
  auto [here, there] = std::mismatch(first.begin(), first.end(), other.begin(), other.end());
  auto told = [](auto item, const Items& all) {
    return item == all.end() ? "nothing" : fmt::format("the {} in collective {}", item->what, item->call);
  };
  return fmt::format(
      "the ranks reduce the same values in another order or merged otherwise: where rank 0 has {}, rank {} has {}; "
      "give "
      "all ranks the same model code and the same fuse options",
      told(here, first), rank, told(there, other));
}

class AgreementKernel final : public Kernel {
 public:
  // `first`: the first one of a step, which counts it.
  AgreementKernel(int channel, Sequence sequence, bool first)
      : channel_(channel), sequence_(std::move(sequence)), first_(first) {}
  void run(const Run&) override {
    const Channel channel = channel_at(channel_);
    if (first_) channel.group().progress()->step.fetch_add(1, std::memory_order_relaxed);
    channel.layouts_differ->store(!agree(channel.group(), sequence_));
  }

 private:
  int channel_;
  Sequence sequence_;
  bool first_;
};

std::string_view name_in(const Channel& channel, int64_t name) {
  return name < 0 || channel.names == nullptr ? "a value"
                                              : std::string_view(channel.names->at(static_cast<size_t>(name)));
}

// Layouts that put every element at the same place count as one.
void mix(base::Hash128& hash, const Shape& shape, const Layout& layout) {
  Shape strides = strides_of(shape, layout);
  for (int axis = 0; axis < shape.rank(); ++axis) hash.mix(static_cast<uint64_t>(shape[axis] == 1 ? 0 : strides[axis]));
}

}  // namespace

bool agree(Group& group, const Sequence& sequence) {
  auto size = static_cast<size_t>(group.size());
  base::Hash128 hash = hash_of(sequence);
  using Digest = std::array<uint64_t, 3>;
  const Digest mine{hash.low, hash.high, sequence.layouts};
  std::vector<Digest> all(size);
  group.all_gather({mine.data(), mine.size(), DType::i64}, {all.data(), size * mine.size(), DType::i64});
  bool same = true, same_layouts = true;
  for (const Digest& other : all) {
    same &= other[0] == all[0][0] && other[1] == all[0][1];
    same_layouts &= other[2] == all[0][2];
  }
  if (same) return same_layouts;
  std::vector<std::string> texts = exchange_texts(group, encode(sequence.items));
  size_t rank = 1;
  while (rank + 1 < size && texts[rank] == texts[0]) ++rank;
  throw_error<CommError>("this step's collectives differ: {}", difference(decode(texts[0]), decode(texts[rank]), rank));
}

std::vector<std::unique_ptr<Kernel>> agreements(std::span<const PlannedCollective> collectives) {
  std::map<int, Sequence> sequences;  // by channel
  std::map<int, base::Hash128> layouts;
  int calls = 0;
  for (const auto& [node, operand_layouts] : collectives) {
    if (node->op != &all_reduce_op()) continue;
    auto number = static_cast<int>(node->attributes.integer("channel"));
    const Channel channel = channel_at(number);
    std::span<const int64_t> names = node->attributes.list("names");
    auto reduce = static_cast<Reduce>(node->attributes.integer("reduce"));
    for (size_t i = 0; i < node->outputs.size(); ++i) {
      sequences[number].items.push_back(
          {calls, fmt::format("{} of {} ({} {})", name_of(reduce), name_in(channel, names[i]),
                              name_of(node->outputs[i].dtype), to_string(node->outputs[i].shape))});
      mix(layouts[number], node->outputs[i].shape, operand_layouts[i]);
    }
    ++calls;
  }
  std::vector<std::unique_ptr<Kernel>> kernels;
  for (auto& [channel, sequence] : sequences) {
    sequence.layouts = layouts[channel].low;
    kernels.push_back(std::make_unique<AgreementKernel>(channel, std::move(sequence), kernels.empty()));
  }
  return kernels;
}

}  // namespace bonfire::comm
