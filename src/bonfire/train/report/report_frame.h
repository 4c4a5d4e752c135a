#pragma once
// What is the same in every report: style, and the script that switches scales and shows the values under the pointer.

#include <string>

namespace bonfire::train {

std::string report_begin(const std::string& title);
std::string report_end();

}  // namespace bonfire::train
