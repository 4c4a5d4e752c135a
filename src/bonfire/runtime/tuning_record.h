#pragma once
// What was measured, as text and as a file. Private to runtime.

#include <map>
#include <optional>
#include <string>

namespace bonfire::runtime {

using Times = std::map<std::string, double>;        // candidate → nanoseconds
using TimesOfNodes = std::map<std::string, Times>;  // by op, attributes, shapes, types, threads and processor

// Adds what `times` lacks of `more`: what is there first stays.
void add_times(TimesOfNodes& times, const TimesOfNodes& more);
TimesOfNodes lacking(const TimesOfNodes& times, const TimesOfNodes& more);
size_t count_times(const TimesOfNodes& times);

// {"build": …, "times": {node: {candidate: nanoseconds}}}
std::string to_json(const TimesOfNodes& times);
// Nothing when it is another build's: its kernels are others. DataError when it is no record.
std::optional<TimesOfNodes> from_json(const std::string& text);

// tuning.json in the folder of BONFIRE_CACHE, XDG_CACHE_HOME/bonfire or ~/.cache/bonfire. A damaged or missing one, one
// of another build, or where nobody may look, holds nothing: that means measuring again.
TimesOfNodes read_record_file();
// Together with what other processes have written there meanwhile. A warning where that cannot be done.
void write_record_file(const TimesOfNodes& times);

}  // namespace bonfire::runtime
