#pragma once
// Global state as the compiler sees it: what the objects of the library keep in memory that can be written.

#include <filesystem>
#include <string>
#include <vector>

namespace bonfire::frame {

// Variables in writable sections that the sources do not call const (these have a constructor) and that `list`, as in
// global_faults, does not name for one of their files. `symbols` is what objdump -t -C prints; an object is compiled of
// the file that it is called after, or of those that such a file in `build` includes. `root` is src/bonfire.
std::vector<std::string> object_global_faults(const std::string& symbols, const std::filesystem::path& build,
                                              const std::filesystem::path& root, const std::filesystem::path& list);

}  // namespace bonfire::frame
