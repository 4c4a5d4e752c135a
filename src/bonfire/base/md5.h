#pragma once
// MD5, as public data sets publish it: it tells a download that went wrong, not one that was forged.

#include <cstddef>
#include <span>
#include <string>

namespace bonfire::base {

std::string md5(std::span<const std::byte> bytes);  // 32 hexadecimal digits

}  // namespace bonfire::base
