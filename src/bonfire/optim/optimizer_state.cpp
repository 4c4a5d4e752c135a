#include "bonfire/optim/optimizer_state.h"

#include <deque>

namespace bonfire::optim {

nn::StateDict state_dict(const Optimizer& optimizer) {
  nn::StateDict state;
  for (const auto& [name, variable] : optimizer.state()) state.push_back({name, variable});
  return state;
}

void load_optimizer_state(const Optimizer& optimizer, const std::filesystem::path& file) {
  load_optimizer_state(optimizer, nn::TensorFiles::open(file));
}

void load_optimizer_state(const Optimizer& optimizer, const nn::TensorFiles& files,
                          const std::function<bool(const Variable&)>& only) {
  const nn::StateDict state = state_dict(optimizer);
  std::vector<nn::TensorEntry> entries(files.entries().begin(), files.entries().end());
  std::deque<std::vector<std::byte>> repeated;
  for (nn::TensorEntry& entry : entries)
    for (const auto& [name, variable] : state) {
      const bool shared_count = entry.dtype == DType::i64 && entry.shape.rank() == 0 && variable.shape().rank() == 1;
      if (name != entry.name || variable.dtype() != DType::i64 || !shared_count) continue;
      std::vector<std::byte>& bytes = repeated.emplace_back();
      for (int64_t i = 0; i < variable.shape()[0]; ++i)
        bytes.insert(bytes.end(), entry.bytes.begin(), entry.bytes.end());
      entry.shape = variable.shape();
      entry.bytes = bytes;
    }
  nn::load_state_dict(state, entries, files.source(), {.only = only});
}

}  // namespace bonfire::optim
