#pragma once
// What is in a file or folder of weights, in words, for `bonfire inspect`.

#include <filesystem>
#include <string>

namespace bonfire::train {

// A safetensors file, a checkpoint, or a run (its newest whole checkpoint). DataError when it is none of these.
std::string describe(const std::filesystem::path& path);

}  // namespace bonfire::train
