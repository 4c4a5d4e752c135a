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
  if (entry.shape != variable.shape()) return false;
  return entry.dtype == variable.dtype() || (is_floating(entry.dtype) && is_floating(variable.dtype()));
}

// The entry's elements in another floating type; the bytes of an entry need not be aligned.
std::vector<std::byte> converted(const TensorEntry& entry, DType dtype) {
  auto count = static_cast<size_t>(entry.shape.count());
  std::vector<std::byte> bytes(count * size_of(dtype));
  dispatch(entry.dtype, [&](auto from) {
    dispatch(dtype, [&](auto to) {
      using From = typename decltype(from)::type;
      using To = typename decltype(to)::type;
      if constexpr (!std::is_integral_v<From> && !std::is_integral_v<To>) {
        using Through = std::conditional_t<std::is_same_v<From, double>, double, float>;
        for (size_t i = 0; i < count; ++i) {
          From value;
          std::memcpy(&value, entry.bytes.data() + i * sizeof(From), sizeof(From));
          To result = static_cast<To>(static_cast<Through>(value));
          std::memcpy(bytes.data() + i * sizeof(To), &result, sizeof(To));
        }
      }
    });
  });
  return bytes;
}

void load_entry(const TensorEntry& entry, const Variable& variable) {
  if (entry.dtype == variable.dtype()) {
    variable.load(entry.bytes);
  } else {
    variable.load(converted(entry, variable.dtype()));
  }
}

std::string spec_of(DType dtype, const Shape& shape) { return fmt::format("{} {}", name_of(dtype), to_string(shape)); }

std::string shortened(const std::vector<std::string>& names) {
  constexpr size_t kMost = 20;
  if (names.size() <= kMost) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{}, and {} more", fmt::join(names.begin(), names.begin() + kMost, ", "), names.size() - kMost);
}

struct Match {
  const TensorEntry* entry;
  Variable variable;
};

// Pairs entries with variables and fills in what has no partner.
std::vector<Match> match(const StateDict& target, std::span<const TensorEntry> entries, LoadReport& report) {
  size_t dropped = prefix_to_drop(entries, target);
  std::unordered_map<std::string_view, const TensorEntry*> by_name;
  for (const TensorEntry& entry : entries) by_name[std::string_view(entry.name).substr(dropped)] = &entry;

  std::vector<Match> matches;
  std::unordered_set<const VariableState*> found;
  std::unordered_set<std::string_view> known;
  for (const auto& [name, variable] : target) {
    known.insert(name);
    auto at = by_name.find(name);
    if (at == by_name.end()) continue;
    found.insert(&variable.state());
    const TensorEntry& entry = *at->second;
    if (fits(entry, variable)) {
      matches.push_back({&entry, variable});
    } else {
      report.misshapen.push_back(fmt::format("{} is {}, found {}", name, spec_of(variable.dtype(), variable.shape()),
                                             spec_of(entry.dtype, entry.shape)));
    }
  }
  for (const auto& [name, variable] : target)
    if (!by_name.contains(name) && !found.contains(&variable.state())) report.missing.push_back(name);
  for (const TensorEntry& entry : entries)
    if (!known.contains(std::string_view(entry.name).substr(dropped))) report.unexpected.push_back(entry.name);
  report.loaded = matches.size();
  return matches;
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
  std::vector<Match> matches = match(target, entries, report);
  if (options.strict && !report.complete()) {
    throw_error<DataError>(
        "[load_state_dict] '{}' does not fit the model: {} of its {} tensors fit the model's {}, nothing is loaded{}\n"
        "Load with strict = false to take over what fits.",
        source, report.loaded, entries.size(), target.size(), list_of_misfits(report));
  }
  for (const Match& one : matches) load_entry(*one.entry, one.variable);
  return report;
}

LoadReport load_state_dict(const StateDict& target, const std::filesystem::path& file, LoadOptions options) {
  SafetensorsFile opened = SafetensorsFile::open(file);
  return load_state_dict(target, opened.entries(), file.string(), options);
}

LoadReport load_state_dict(const StateDict& target, const StateDict& values, LoadOptions options) {
  return load_state_dict(target, StateCopy(values).entries(), "state dict", options);
}

void save_state_dict(const StateDict& state, const std::filesystem::path& file, const SafetensorsMetadata& metadata) {
  StateCopy values(state);
  write_safetensors(file, values.entries(), with_checksum(values.entries(), metadata));
}

size_t bytes_of(const StateDict& state) {
  std::unordered_set<const VariableState*> counted;
  size_t total = 0;
  for (const auto& [name, variable] : state)
    if (counted.insert(&variable.state()).second) total += variable.spec().bytes();
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
    if (places.try_emplace(&variable.state(), Place{total, {}}).second) total += variable.spec().bytes();
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
    std::span<std::byte> bytes = std::span(bytes_.get() + place.offset, variable.spec().bytes());
    if (!place.layout) place.layout = variable.save_as_it_lies(bytes);
    entries_.push_back({name, variable.dtype(), variable.shape(), bytes});
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
