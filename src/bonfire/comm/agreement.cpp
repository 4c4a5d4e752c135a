#include "bonfire/comm/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "bonfire/base/error.h"
#include "bonfire/base/hash.h"
#include "bonfire/comm/collective_op.h"
#include "bonfire/comm/flat_parts.h"
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

bool agree(Group& group, const Sequence& sequence, const base::Hash128& hash) {
  auto size = static_cast<size_t>(group.size());
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

// An item whose name is known when it runs: ranks of another job may have other names for the same plan.
struct PlannedItem {
  int call;
  std::string before;  // "mean of "
  int64_t name;
  std::string after;  // " (f32 [10, 144])"
};

class AgreementKernel final : public Kernel {
 public:
  // `first`: the first one of a step, which counts it.
  AgreementKernel(Axis axis, Device device, std::vector<PlannedItem> items, uint64_t layouts, bool first)
      : axis_(axis), device_(device), items_(std::move(items)), first_(first) {
    sequence_.layouts = layouts;
  }
  void run(const Run& run) override {
    const AxisGroups& groups = AxisGroups::of(run);
    const std::shared_ptr<const AxisGroups::Along> along = groups.along(axis_, device_);
    if (groups.names() != names_) name_items(groups.names());
    if (first_) along->group().progress()->step.fetch_add(1, std::memory_order_relaxed);
    along->layouts_differ->store(!agree(along->group(), sequence_, hash_));
  }

 private:
  void name_items(const std::shared_ptr<ValueNames>& names) {
    sequence_.items.clear();
    for (const PlannedItem& item : items_)
      sequence_.items.push_back({item.call, item.before + names->at(item.name) + item.after});
    hash_ = hash_of(sequence_);
    names_ = names;
  }

  Axis axis_;
  Device device_;
  std::vector<PlannedItem> items_;
  Sequence sequence_;
  base::Hash128 hash_;
  std::shared_ptr<ValueNames> names_;  // that the sequence has
  bool first_;
};

std::string spec_text(const TensorSpec& spec) {
  return fmt::format("({} {})", name_of(spec.dtype), to_string(spec.shape));
}

// Layouts that put every element at the same place count as one.
void mix(base::Hash128& hash, const Shape& shape, const Layout& layout) {
  Shape strides = strides_of(shape, layout);
  for (int axis = 0; axis < shape.rank(); ++axis) hash.mix(static_cast<uint64_t>(shape[axis] == 1 ? 0 : strides[axis]));
}

}  // namespace

bool agree(Group& group, const Sequence& sequence) { return agree(group, sequence, hash_of(sequence)); }

void agree_on_messages(Group& group, std::span<const ScheduledMessage> messages) {
  Items items;  // call: of what is sent to rank i, 2 i; of what is received from it, 2 i + 1
  for (const ScheduledMessage& message : messages)
    items.push_back({2 * message.peer + (message.sent ? 0 : 1), message.what});
  std::vector<Items> all;
  for (const std::string& text : exchange_texts(group, encode(items))) all.push_back(decode(text));
  auto list = [&](int of, int peer, bool sent) {
    std::vector<std::string> own;
    for (const Sequence::Item& item : all[static_cast<size_t>(of)])
      if (item.call == 2 * peer + (sent ? 0 : 1)) own.push_back(item.what);
    return own;
  };
  auto told = [](const std::vector<std::string>& own, size_t i) { return i < own.size() ? own[i] : "nothing"; };
  for (int from = 0; from < group.size(); ++from)
    for (int to = 0; to < group.size(); ++to) {
      const std::vector<std::string> sent = list(from, to, true), received = list(to, from, false);
      for (size_t i = 0; i < std::max(sent.size(), received.size()); ++i)
        if (told(sent, i) != told(received, i))
          throw_error<CommError>(
              "the schedules of the ranks differ: of message {} from rank {} to rank {}, the first sends {} and the "
              "second expects {}",
              i + 1, from, to, told(sent, i), told(received, i));
    }
}

std::vector<Agreement> agreements(std::span<const PlannedCollective> collectives, bool first) {
  std::map<Axis, std::vector<PlannedItem>> items;
  std::map<Axis, base::Hash128> layouts;
  std::map<Axis, int> calls;  // ranks along one axis may have others along another
  for (const auto& [node, operand_layouts] : collectives) {
    const std::string deed = deed_of(*node->op, node->attributes);
    if (deed.empty()) continue;
    const Axis axis = axis_of(node->attributes);
    const bool named = node->attributes.has("names");
    for (size_t i = 0; i < node->inputs.size(); ++i) {
      // Of a part, which may be shorter on other ranks, the whole.
      const TensorSpec& spec = node->op == &gather_flat_op() ? node->outputs[i] : node->inputs[i].spec();
      items[axis].push_back({calls[axis], deed, named ? node->attributes.list("names")[i] : -1, " " + spec_text(spec)});
      mix(layouts[axis], spec.shape, operand_layouts[i]);
    }
    ++calls[axis];
  }
  std::vector<Agreement> list;
  for (auto& [axis, planned] : items)
    list.push_back({{.axis = axis, .kind = Line::Kind::collective, .number = 0},
                    std::make_unique<AgreementKernel>(axis, collectives[0].node->device(), std::move(planned),
                                                      layouts[axis].low, first && list.empty())});
  return list;
}

}  // namespace bonfire::comm
