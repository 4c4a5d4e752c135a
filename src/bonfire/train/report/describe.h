#pragma once
// What is in a file or folder, in words, for `bonfire inspect`.

#include <filesystem>
#include <string>

namespace bonfire::train {

struct Description {
  std::string text;
  bool damaged = false;  // a checkpoint that was looked at is
};

// A safetensors file, a checkpoint, a run (its newest whole checkpoint), or a folder of data that open_data() reads.
// DataError when it is none of these.
Description describe(const std::filesystem::path& path);

// Which samples the run in the folder was trained on, by the ledger of its newest whole checkpoint and what ranks have
// traced: `damaged` where that is not every sample of every epoch exactly once. DataError without such a checkpoint.
Description describe_samples(const std::filesystem::path& run);

}  // namespace bonfire::train
