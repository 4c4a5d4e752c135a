#pragma once
// How the program is called here, for hints that can be typed as they stand:
//   fmt::format("see {} config", base::program_name())

#include <string>

namespace bonfire::base {

// What BONFIRE_CALLED_AS says (the script ./bonfire sets it to what was typed), else "bonfire".
std::string program_name();

}  // namespace bonfire::base
