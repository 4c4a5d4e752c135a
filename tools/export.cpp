#include <fmt/format.h>

#include <deque>
#include <filesystem>
#include <memory>

#include "bonfire/base/error.h"
#include "bonfire/nn/weights_checksum.h"
#include "bonfire/train/checkpoint/checkpoint.h"
#include "bonfire/train/report/number_text.h"
#include "tools/command.h"

namespace bonfire::tools {

namespace {

namespace fs = std::filesystem;

struct ExportWanted {
  std::string run, file;
  bool replace = false;
};

int run_export(const ExportWanted& wanted) {
  const fs::path from = train::weights_in(wanted.run), to = wanted.file;
  if (to.extension() != ".safetensors")
    throw_error<ConfigError>("[export] '{}': expected a name that ends in .safetensors", wanted.file);
  std::error_code ignored;
  if (!wanted.replace && fs::exists(fs::symlink_status(to, ignored)))
    throw_error<ConfigError>("[export] '{}' is there already; --replace writes over it", wanted.file);
  const nn::TensorFiles weights = train::open_tensors(from);
  std::deque<std::vector<std::byte>> memory;
  const std::vector<nn::TensorEntry> entries = nn::whole_entries(weights, memory);
  nn::SafetensorsMetadata metadata = weights.metadata();
  metadata.erase(nn::kChecksumKey);
  metadata["format"] = "pt";  // what transformers and others ask for before they read a file
  nn::write_safetensors(to, entries, nn::with_checksum(entries, metadata));
  int64_t numbers = 0;
  for (const nn::TensorEntry& entry : entries) numbers += entry.shape.count();
  fmt::print("{} tensors with {} numbers, from {}, are in {}\n", entries.size(), train::grouped(numbers), from.string(),
             to.string());
  return 0;
}

}  // namespace

void add_export(Command program) {
  Command command =
      program.add("export", "Writes the weights of a run into one file that PyTorch and others read",
                  "bonfire export runs/1 model.safetensors                                the best ones\n"
                  "bonfire export runs/1/checkpoints/step-00000313 model.safetensors      those of a checkpoint");
  auto wanted = std::make_shared<ExportWanted>();
  command.argument("run", wanted->run, "the run's folder, or one of its checkpoints'");
  command.argument("file", wanted->file, "the file to write: NAME.safetensors");
  command.option("--replace", wanted->replace, "write over a file that is there");
  command.runs([wanted] { return run_export(*wanted); });
}

}  // namespace bonfire::tools
