#include "bonfire/data/labels.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bonfire/base/error.h"

namespace bonfire::data {

namespace {

// Of one part: how many labels are not below `classes`, and the first of them. Empty: none.
std::string label_beyond(const Dataset& dataset, const char* part, int64_t classes, const std::string& remedy) {
  int64_t first = -1, count = 0;
  for (int64_t i = 0; i < dataset.size(); ++i)
    if (dataset.label(i) >= classes && count++ == 0) first = i;
  if (count == 0) return {};
  return fmt::format("{} sample {} has the label {}{}, expected less than {}; {}", part, first, dataset.label(first),
                     count == 1 ? "" : fmt::format(" (and {} more are as large)", count - 1), classes, remedy);
}

}  // namespace

size_t class_index(std::string_view where, int64_t sample, int64_t label, int64_t classes) {
  if (label < 0 || label >= classes)
    throw_error<DataError>(
        "[{}] sample {} has the label {}, expected 0 to {} of {} classes; repair the labels, or say how many classes "
        "there are",
        where, sample, label, classes - 1, classes);
  return static_cast<size_t>(label);
}

std::vector<int64_t> count_labels(const Dataset& dataset, int64_t classes) {
  std::vector<int64_t> counts(static_cast<size_t>(classes));
  for (int64_t i = 0; i < dataset.size(); ++i) ++counts[class_index("labels", i, dataset.label(i), classes)];
  return counts;
}

std::vector<std::string> label_faults(const ImageSource& source, std::optional<int64_t> classes) {
  std::vector<std::string> faults;
  const std::string remedy =
      classes ? "num_classes says so" : "repair the labels, or say how many classes there are with num_classes";
  if (std::optional<int64_t> most = classes ? classes : source.known_classes)
    for (const auto& [dataset, part] : {std::pair(source.train.get(), "training"), {source.test.get(), "test"}})
      if (std::string fault = label_beyond(*dataset, part, *most, remedy); !fault.empty()) faults.push_back(fault);
  if (classes || !faults.empty()) return faults;
  constexpr size_t kNamed = 10;
  std::vector<std::string> empty;
  const std::vector<int64_t> counts = count_labels(*source.train, source.classes);
  for (size_t i = 0; i < counts.size(); ++i)
    if (counts[i] == 0) empty.push_back(i < source.class_names.size() ? source.class_names[i] : std::to_string(i));
  if (empty.empty()) return faults;
  const size_t all = empty.size();
  if (all > kNamed) empty.resize(kNamed);
  faults.push_back(
      fmt::format("{} of {} classes {} no sample to train on: {}{}; add some, or say how many classes "
                  "there are with num_classes",
                  all, source.classes, all == 1 ? "has" : "have", fmt::join(empty, ", "), all > kNamed ? ", ..." : ""));
  return faults;
}

}  // namespace bonfire::data
