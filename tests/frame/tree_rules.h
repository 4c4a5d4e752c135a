#pragma once
// Rules of the source tree that a compiler does not check. Each function returns its findings, one sentence a fault.

#include <filesystem>
#include <string>
#include <vector>

namespace bonfire::frame {

// The folders of src/bonfire/, lowest first: the first word of each line of `file`.
std::vector<std::string> read_layers(const std::filesystem::path& file);

// A folder may include only itself and folders above it in the list. `root` is the folder that holds bonfire/. Headers
// directly in bonfire/ gather everything for users, so they may include all and no folder may include them. Includes
// in quotes give the full path, so that none escapes this check.
std::vector<std::string> layering_faults(const std::filesystem::path& root, const std::vector<std::string>& layers);

// Headers have at most 300 lines, sources at most 600, and no file is called utils, helpers, common or misc.
std::vector<std::string> file_faults(const std::filesystem::path& root);

// Thread-local variables and mutable globals of the headers and sources under `root`, as "graph/trace.cpp
// current_trace", that `file` does not list, and those that it lists but that are not there. A line of it: file, name,
// why it is. Read line by line, so that all sources are seen, built or not; what another form hides the objects show
// (tests/frame/object_globals.h).
std::vector<std::string> global_faults(const std::filesystem::path& root, const std::filesystem::path& file);

// Links and pictures of the Markdown files in `root` and in its docs/ lead to files that are there. Addresses elsewhere
// are not looked at, nor is what stands in code.
std::vector<std::string> link_faults(const std::filesystem::path& root);

}  // namespace bonfire::frame
