#pragma once
// What all ranks must have alike, compared before it matters: a rank with another learning rate would spoil the
// weights of all, and one with another number of steps would leave the others waiting.
//
//   comm::require_same(group, "settings", {{"lr", "0.02"}, {"epochs", "3"}});
//
// ConfigError, the same on every rank, names each key that differs, its values and the ranks that have them:
//   [settings] the ranks differ: lr is 0.02 on rank 0 and 0.05 on ranks 1 and 2; give all ranks the same

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bonfire/comm/group.h"

namespace bonfire::comm {

using Settings = std::vector<std::pair<std::string, std::string>>;  // key, value

// A collective call, whatever the ranks have: what goes round is of the same size on all, 16 bytes where nothing
// differs. Calls for different things (`what`) that meet are told apart, too.
void require_same(Group& group, const std::string& what, const Settings& settings);

// "lr is 0.02 on rank 0 and 0.05 on rank 1, seed is ..."; empty: nothing differs. of_ranks: [rank]
std::string difference_in_words(std::span<const Settings> of_ranks);

std::string encode(const Settings& settings);
Settings decode_settings(const std::string& text);

// Every rank's text, [rank]. A collective call.
std::vector<std::string> exchange_texts(Group& group, std::string mine);

}  // namespace bonfire::comm
