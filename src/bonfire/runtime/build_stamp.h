#pragma once
// What tells one build of this library from another.

#include <string>

namespace bonfire::runtime {

// The linker's identifiers of the library's shared objects that are loaded, as text; empty where there are none.
std::string build_stamp();

// What the processor calls itself.
std::string processor_name();

}  // namespace bonfire::runtime
