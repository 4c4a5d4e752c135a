#include "bonfire/nn/state_dict.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <ostream>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "bonfire/base/error.h"
#include "bonfire/nn/tensor_files.h"
#include "bonfire/nn/weights_checksum.h"

namespace bonfire::nn {

namespace {

constexpr std::string_view kWrapperPrefix = "module.";  // what wrappers for data parallel training put in front

// How many leading characters of every name to leave out.
size_t prefix_to_drop(std::span<const TensorEntry> entries, const StateDict& target) {
  auto wrapped = [](const auto& item) { return item.name.starts_with(kWrapperPrefix); };
  if (entries.empty() || !std::all_of(entries.begin(), entries.end(), wrapped)) return 0;
  return std::any_of(target.begin(), target.end(), wrapped) ? 0 : kWrapperPrefix.size();
}

bool fits(const TensorEntry& entry, const Variable& variable) {
  if (entry.whole() != variable.shape()) return false;
  return entry.dtype == variable.dtype() || (is_floating(entry.dtype) && is_floating(variable.dtype()));
}

// Elements in another floating type; the bytes of an entry need not be aligned.
std::vector<std::byte> converted(std::span<const std::byte> source, DType source_dtype, DType dtype) {
  const size_t count = source.size() / size_of(source_dtype);
  std::vector<std::byte> bytes(count * size_of(dtype));
  dispatch(source_dtype, [&](auto from) {
    dispatch(dtype, [&](auto to) {
      using From = typename decltype(from)::type;
      using To = typename decltype(to)::type;
      if constexpr (!std::is_integral_v<From> && !std::is_integral_v<To>) {
        using Through = std::conditional_t<std::is_same_v<From, double>, double, float>;
        for (size_t i = 0; i < count; ++i) {
          From value;
          std::memcpy(&value, source.data() + i * sizeof(From), sizeof(From));
          To result = static_cast<To>(static_cast<Through>(value));
          std::memcpy(bytes.data() + i * sizeof(To), &result, sizeof(To));
        }
      }
    });
  });
  return bytes;
}

std::string spec_of(DType dtype, const Shape& shape) { return fmt::format("{} {}", name_of(dtype), to_string(shape)); }

std::string shortened(const std::vector<std::string>& names) {
  constexpr size_t kMost = 20;
  if (names.size() <= kMost) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{}, and {} more", fmt::join(names.begin(), names.begin() + kMost, ", "), names.size() - kMost);
}

using Pieces = std::vector<const TensorEntry*>;  // of one tensor

struct Match {
  const Pieces* pieces;
  Variable variable;
};

// What the variable holds of the tensor.
struct FoundValues {
  std::span<const std::byte> bytes;
  std::vector<std::byte> memory = {};
};

FoundValues values_for(const Match& match, const std::string& source) {
  const TensorEntry& first = *match.pieces->front();
  const Slice slice = match.variable.slice();
  if (match.pieces->size() == 1 && (first.slice == nullptr ? slice.is_all() : *first.slice == slice))
    return {first.bytes};
  FoundValues values;
  values.memory = assemble(*match.pieces, slice, source);
  values.bytes = values.memory;
  return values;
}

void load_values(const Match& match, const FoundValues& values) {
  const DType dtype = match.pieces->front()->dtype;
  if (dtype == match.variable.dtype()) {
    match.variable.load_stored(values.bytes);
  } else {
    match.variable.load_stored(converted(values.bytes, dtype, match.variable.dtype()));
  }
}

using TensorsByName = std::unordered_map<std::string_view, Pieces>;  // by name

TensorsByName tensors_in(std::span<const TensorEntry> entries, size_t dropped) {
  TensorsByName tensors;
  for (const TensorEntry& entry : entries) tensors[std::string_view(entry.name).substr(dropped)].push_back(&entry);
  return tensors;
}

// Pairs tensors with variables and fills in what has no partner.
std::vector<Match> match(const StateDict& target, const TensorsByName& tensors, LoadReport& report) {
  std::vector<Match> matches;
  std::unordered_set<const VariableState*> found;
  for (const auto& [name, variable] : target) {
    auto at = tensors.find(name);
    if (at == tensors.end()) continue;
    found.insert(&variable.state());
    const TensorEntry& entry = *at->second.front();
    if (fits(entry, variable)) {
      matches.push_back({&at->second, variable});
    } else {
      report.misshapen.push_back(fmt::format("{} is {}, found {}", name, spec_of(variable.dtype(), variable.shape()),
                                             spec_of(entry.dtype, entry.whole())));
    }
  }
  for (const auto& [name, variable] : target)
    if (!tensors.contains(name) && !found.contains(&variable.state())) report.missing.push_back(name);
  report.loaded = matches.size();
  return matches;
}

// In the order of the entries.
void note_unexpected(const StateDict& target, std::span<const TensorEntry> entries, const TensorsByName& tensors,
                     LoadReport& report) {
  std::unordered_set<std::string_view> known;
  for (const auto& [name, variable] : target) known.insert(name);
  std::unordered_set<const TensorEntry*> unexpected;
  for (const auto& [name, pieces] : tensors)
    if (!known.contains(name)) unexpected.insert(pieces.front());
  for (const TensorEntry& entry : entries)
    if (unexpected.contains(&entry)) report.unexpected.push_back(entry.name);
}

std::string list_of_misfits(const LoadReport& report) {
  std::string text;
  if (!report.missing.empty())
    text += fmt::format("\n  {} missing: {}", report.missing.size(), shortened(report.missing));
  if (!report.unexpected.empty())
    text += fmt::format("\n  {} unexpected: {}", report.unexpected.size(), shortened(report.unexpected));
  if (!report.misshapen.empty())
    text += fmt::format("\n  {} misshapen: {}", report.misshapen.size(), shortened(report.misshapen));
  return text;
}

}  // namespace

std::string to_string(const LoadReport& report) {
  return fmt::format("{} loaded", report.loaded) + list_of_misfits(report);
}

std::ostream& operator<<(std::ostream& out, const LoadReport& report) { return out << to_string(report); }

LoadReport load_state_dict(const StateDict& target, std::span<const TensorEntry> entries, const std::string& source,
                           LoadOptions options) {
  LoadReport report;
  const TensorsByName tensors = tensors_in(entries, prefix_to_drop(entries, target));
  const std::vector<Match> matches = match(target, tensors, report);
  note_unexpected(target, entries, tensors, report);
  if (options.strict && !report.complete()) {
    throw_error<DataError>(
        "[load_state_dict] '{}' does not fit the model: {} of its {} tensors fit the model's {}, nothing is loaded{}\n"
        "Load with strict = false to take over what fits.",
        source, report.loaded, tensors.size(), target.size(), list_of_misfits(report));
  }
  std::vector<FoundValues> values;  // all before the first is loaded: a part may be missing
  auto is_wanted = [&](const Match& one) { return !options.only || options.only(one.variable); };
  for (const Match& one : matches) values.push_back(is_wanted(one) ? values_for(one, source) : FoundValues());
  for (size_t i = 0; i < matches.size(); ++i)
    if (is_wanted(matches[i])) load_values(matches[i], values[i]);
  return report;
}

LoadReport load_state_dict(const StateDict& target, const TensorFiles& files, LoadOptions options) {
  return load_state_dict(target, files.entries(), files.source(), options);
}

LoadReport load_state_dict(const StateDict& target, const std::filesystem::path& file, LoadOptions options) {
  return load_state_dict(target, TensorFiles::open(file), options);
}

LoadReport load_state_dict(const StateDict& target, const StateDict& values, LoadOptions options) {
  return load_state_dict(target, StateCopy(values).entries(), "state dict", options);
}

void save_state_dict(const StateDict& state, const std::filesystem::path& file, const SafetensorsMetadata& metadata) {
  for (const auto& [name, variable] : state)
    if (const Slice slice = variable.slice(); !slice.is_all())
      throw_error<GraphError>(
          "[save_state_dict] of {} only {} is here, and '{}' should have all of it; fleet::gather() puts it together",
          name, to_string(slice), file.string());
  StateCopy values(state);
  write_safetensors(file, values.entries(), with_checksum(values.entries(), metadata));
}

size_t bytes_of(const StateDict& state) {
  std::unordered_set<const VariableState*> counted;
  size_t total = 0;
  for (const auto& [name, variable] : state)
    if (counted.insert(&variable.state()).second) total += variable.stored_spec().bytes();
  return total;
}

void StateCopy::reserve(size_t bytes) {
  if (bytes <= capacity_) return;
  bytes_ = std::make_unique<std::byte[]>(bytes);
  capacity_ = bytes;
}

void StateCopy::take(const StateDict& state) {
  struct Place {
    size_t offset;                 // bytes
    std::optional<Layout> layout;  // once it is copied
  };
  std::unordered_map<const VariableState*, Place> places;
  size_t total = 0;
  for (const auto& [name, variable] : state)
    if (places.try_emplace(&variable.state(), Place{total, {}}).second) total += variable.stored_spec().bytes();
  if (total > capacity_) {
    bytes_ = std::make_unique_for_overwrite<std::byte[]>(total);
    capacity_ = total;
  }
  entries_.clear();
  layouts_.clear();
  reordered_.clear();
  in_order_ = false;
  for (const auto& [name, variable] : state) {
    Place& place = places.at(&variable.state());
    std::span<std::byte> bytes = std::span(bytes_.get() + place.offset, variable.stored_spec().bytes());
    if (!place.layout) place.layout = variable.save_as_it_lies(bytes);
    const Slice slice = variable.slice();
    entries_.push_back({name, variable.dtype(), variable.stored_spec().shape, bytes,
                        slice.is_all() ? nullptr : std::make_shared<const Slice>(slice)});
    layouts_.push_back(*place.layout);
  }
}

std::span<const TensorEntry> StateCopy::entries() {
  if (in_order_) return entries_;
  for (size_t i = 0; i < entries_.size(); ++i) {
    TensorEntry& entry = entries_[i];
    if (same_places(entry.shape, layouts_[i], {})) continue;
    std::vector<std::byte>& target = reordered_.emplace_back(entry.bytes.size());
    convert_layout(entry.bytes.data(), layouts_[i], target.data(), {}, entry.shape, entry.dtype);
    entry.bytes = target;
  }
  in_order_ = true;
  return entries_;
}

}  // namespace bonfire::nn
