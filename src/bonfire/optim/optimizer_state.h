#pragma once
// What an optimizer remembers, to files and back.
//
//   nn::save_state_dict(optim::state_dict(optimizer), "optimizer.safetensors");
//   optim::load_optimizer_state(optimizer, "optimizer.safetensors");

#include <filesystem>

#include "bonfire/nn/state_dict.h"
#include "bonfire/nn/tensor_files.h"
#include "bonfire/optim/optimizer.h"

namespace bonfire::optim {

nn::StateDict state_dict(const Optimizer& optimizer);

// Takes Optimizer::state() from a file. Older ones hold one count of updates for many parameters, which becomes that of
// each. DataError as from nn::load_state_dict.
void load_optimizer_state(const Optimizer& optimizer, const nn::TensorFiles& files,
                          const std::function<bool(const Variable&)>& only = {});  // as nn::LoadOptions has it
void load_optimizer_state(const Optimizer& optimizer, const std::filesystem::path& file);

}  // namespace bonfire::optim
