#pragma once
// What went wrong, in words for other ranks, and whether it went wrong there.

#include <exception>
#include <string>

namespace bonfire::comm {

// Whether it is, or was caused by (std::nested_exception), a peer that was lost: a CommError or TimeoutError.
bool is_lost_peer(const std::exception& error);

// "out of memory", what() of any other std::exception.
std::string reason_of(const std::exception_ptr& error);

}  // namespace bonfire::comm
