#pragma once
// Checkpoints: folders that are either whole or not there.
//
//   runs/7/checkpoints/step-00000313/weights.safetensors    parameters and buffers, by torchvision's names
//                                    average.safetensors    the running mean of the weights, where there is one
//                                    optimizer.safetensors  the optimizer's state
//                                    state.json             where the run is
//                                    manifest.json          sizes and checksums of the others, written last
//
// One is written into a folder with another name (unfinished-step-N), every file synced, the manifest last; then the
// folder is renamed and its parent synced. One of the same step that is there already is renamed just before
// (discarded-step-N) and removed last. So at every moment there is a whole checkpoint, under its own name or as an
// unfinished one with a manifest, and the newest one that agrees with its manifest is what a resumed run begins from.
//
// Where ranks hold slices of tensors each of them writes what it owns, those after the first into
// weights.rank-N.safetensors and so on; what several have, the first of them writes. The manifest says which slice is
// where (train/checkpoint/manifest.h), and whoever reads asks for slices: open_tensors(weights_file(checkpoint)) holds
// all of them.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "bonfire/comm/group.h"
#include "bonfire/nn/state_dict.h"
#include "bonfire/nn/tensor_files.h"

namespace bonfire::train {

struct CheckpointContent {
  nn::StateCopy weights, optimizer;
  std::optional<nn::StateCopy> average = {};
  std::string state = {};                 // JSON
  nn::SafetensorsMetadata metadata = {};  // what the files of weights and of their mean say besides
};

std::string checkpoint_name(int64_t step);  // "step-00000313"

// Writes folder/step-N and removes all but it, the newest `keep` and the one called `spare`. Returns its path.
// DataError when it cannot be written: what was there before is still there, and nothing of the new one is.
std::filesystem::path save_checkpoint(const std::filesystem::path& folder, int64_t step, CheckpointContent& content,
                                      int64_t keep, const std::filesystem::path& spare = {});
// The same as a collective call of ranks that hold slices, and that must see one file system. The first rank's state
// counts. An error on one rank is one on all; a rank that goes meanwhile is a CommError.
std::filesystem::path save_checkpoint_of_ranks(comm::Group& ranks, const std::filesystem::path& folder, int64_t step,
                                               CheckpointContent& content, int64_t keep,
                                               const std::filesystem::path& spare = {});

// Whether everything the manifest names is there and unchanged; otherwise what is wrong, with the file's name.
// DataError for one of a newer format, which is not damaged: nothing older must be taken in its place.
std::optional<std::string> damage_of(const std::filesystem::path& checkpoint);

// The newest whole checkpoint of the folder, renamed yet or not. Damaged newer ones are named in `skipped`, each with
// what is wrong.
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& folder,
                                                       std::vector<std::string>* skipped = nullptr);

// Of a run's folder that nobody writes to: whole checkpoints that were not renamed yet get their name, and what
// processes that are gone have left half-written or half-removed is removed.
void sweep_leftovers(const std::filesystem::path& run);
// The same before a run goes on from one of its checkpoints. Returns where that is then.
std::filesystem::path take_up(const std::filesystem::path& run, const std::filesystem::path& checkpoint);

// A run that goes back to a step puts the finished ones after it, newest first, into a folder of its own (set-aside-N),
// from where it can be gone on with likewise.
std::vector<std::filesystem::path> checkpoints_after(const std::filesystem::path& folder, int64_t step);
std::filesystem::path new_folder_aside(const std::filesystem::path& run);
void move_into(const std::filesystem::path& folder, const std::filesystem::path& what);  // DataError

std::string read_checkpoint_state(const std::filesystem::path& checkpoint);  // state.json
std::filesystem::path weights_file(const std::filesystem::path& checkpoint);

// The file that has the weights of a run (its best, else what the newest whole checkpoint evaluates), of a checkpoint,
// or the file itself. ConfigError for a folder without any, DataError for a damaged checkpoint.
std::filesystem::path weights_in(const std::filesystem::path& place);
// What tells a file of weights from another: its size, and a hash of its beginning (names, shapes, checksums) and of
// samples of the rest.
std::string identity_of_weights(const std::filesystem::path& file);

std::filesystem::path optimizer_file(const std::filesystem::path& checkpoint);
std::filesystem::path average_file(const std::filesystem::path& checkpoint);

// The tensors of one of these files, and those that other ranks have written beside it.
nn::TensorFiles open_tensors(const std::filesystem::path& file);

}  // namespace bonfire::train
