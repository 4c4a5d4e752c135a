#include "bonfire/optim/optimizer_state.h"

#include <cstring>
#include <deque>
#include <map>
#include <set>

namespace bonfire::optim {

nn::StateDict state_dict(const Optimizer& optimizer) {
  nn::StateDict state;
  for (const auto& [name, variable] : optimizer.state()) state.push_back({name, variable});
  return state;
}

void load_optimizer_state(const Optimizer& optimizer, const std::filesystem::path& file) {
  load_optimizer_state(optimizer, nn::TensorFiles::open(file));
}

namespace {

bool is_counts(const std::string& name, DType dtype) {
  return dtype == DType::i64 && (name == "step" || name.starts_with("step."));
}

// The counts of updates are together for the parameters of a device. Where those were on other devices, or there was
// one count for all, the number that all of them have is everyone's.
class SharedCounts {
 public:
  SharedCounts(const nn::StateDict& state, std::vector<nn::TensorEntry>& entries) {
    if (fits(state, entries)) return;
    std::set<int64_t> numbers;
    for (const nn::TensorEntry& entry : entries)
      if (is_counts(entry.name, entry.dtype)) add_numbers(entry, numbers);
    if (numbers.size() != 1) return;  // what is loaded then says which tensors do not fit
    std::erase_if(entries, [](const nn::TensorEntry& entry) { return is_counts(entry.name, entry.dtype); });
    for (const auto& [name, variable] : state) {
      if (!is_counts(name, variable.dtype())) continue;
      const std::vector<int64_t>& own =
          counts_.emplace_back(static_cast<size_t>(variable.shape().count()), *numbers.begin());
      entries.push_back({name, DType::i64, variable.shape(), std::as_bytes(std::span(own))});
    }
  }

 private:
  static bool fits(const nn::StateDict& state, const std::vector<nn::TensorEntry>& entries) {
    std::map<std::string, Shape> wanted, found;
    for (const auto& [name, variable] : state)
      if (is_counts(name, variable.dtype())) wanted.emplace(name, variable.shape());
    for (const nn::TensorEntry& entry : entries)
      if (is_counts(entry.name, entry.dtype)) found.emplace(entry.name, entry.whole());
    return wanted == found;
  }

  static void add_numbers(const nn::TensorEntry& entry, std::set<int64_t>& numbers) {
    for (size_t at = 0; at + sizeof(int64_t) <= entry.bytes.size(); at += sizeof(int64_t)) {
      int64_t number = 0;
      std::memcpy(&number, entry.bytes.data() + at, sizeof number);
      numbers.insert(number);
    }
  }

  std::deque<std::vector<int64_t>> counts_;  // that the entries point to
};

}  // namespace

void load_optimizer_state(const Optimizer& optimizer, const nn::TensorFiles& files,
                          const std::function<bool(const Variable&)>& only) {
  const nn::StateDict state = state_dict(optimizer);
  std::vector<nn::TensorEntry> entries(files.entries().begin(), files.entries().end());
  const SharedCounts counts(state, entries);
  nn::load_state_dict(state, entries, files.source(), {.only = only});
}

}  // namespace bonfire::optim
