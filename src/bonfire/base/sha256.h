#pragma once
// SHA-256 (FIPS 180-4): what it is made of cannot be found from it.

#include <string>
#include <string_view>

namespace bonfire::base {

std::string sha256(std::string_view bytes);  // 64 hexadecimal digits

}  // namespace bonfire::base
