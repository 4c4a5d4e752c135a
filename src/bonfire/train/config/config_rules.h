#pragma once
// What settings say together. A setting that would have no effect beside the others, that contradicts them, that is not
// built yet or that this machine cannot follow is refused: never read and then ignored.

#include <string>
#include <string_view>

#include "bonfire/train/config/config.h"

namespace bonfire::train {

// ConfigError naming the setting, what it needs, and the limit where there is one.
void check_config(const Config& config);

// Keys that say what is trained on what. A program that gives the trainer a model, a task and data has said that.
inline constexpr std::string_view kKeysOfKnownTasks[] = {
    "model",          "num_classes", "data",       "train_file", "test_file",    "test_share",  "validation_share",
    "image_size",     "seq_length",  "lower_case", "layers",     "heads",        "width",       "context",
    "dropout",        "crop",        "crop_area",  "crop_ratio", "crop_padding", "center_crop", "flip",
    "random_erasing", "mixup",       "mean",       "deviation"};

bool has_momentum(const Config& config);  // whether its optimizer reads `momentum`

// Whether a key that does not exist here is one that will: "strategy.sharding", "mesh.data".
bool is_planned_key(std::string_view name);

}  // namespace bonfire::train
