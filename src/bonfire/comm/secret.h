#pragma once
// What strangers must not know.

#include <string>
#include <string_view>

namespace bonfire::comm {

std::string random_secret();  // 32 hexadecimal digits. CommError where the system gives no random numbers

// Takes as long for a wrong secret as for the right one.
bool same_secret(std::string_view given, std::string_view expected);

// What is shown at a gate (comm/gate.h) in place of a job's token, which cannot be found from it.
std::string pass_of(std::string_view token);

}  // namespace bonfire::comm
