#pragma once
// What the ranks of a run tell each other between steps. Each is a collective call; a run on one rank has nobody to
// tell, and nothing happens.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bonfire/comm/same_settings.h"
#include "bonfire/graph/mesh.h"
#include "bonfire/nn/state_dict.h"

namespace bonfire::train {

bool is_first_rank();  // the one that shows progress and writes files

void add_over_ranks(std::span<int64_t> counts);  // what each rank has counted
// What each part of the batch counts once, though several ranks may share the work on it (mesh).
void add_over_data(std::span<int64_t> counts);
void add_over_data(std::span<double> sums);

std::vector<int64_t> numbers_of_ranks(int64_t own);  // [rank]

std::string text_of_first_rank(const std::string& text);
// Of the first along an axis, where one is given: each line of ranks along it has others.
void take_values_of_first_rank(const nn::StateDict& variables, std::optional<Axis> along = {});

// ConfigError, the same on all ranks, naming keys that differ, their values and the ranks that have them.
void require_same_on_ranks(const std::string& what, const comm::Settings& settings);

}  // namespace bonfire::train
