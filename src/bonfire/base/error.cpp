#include "bonfire/base/error.h"

namespace bonfire::base {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  throw std::logic_error(fmt::format("{}:{}: broken invariant: {}{}{} (this is a bug in Bonfire, please report it)",
                                     file, line, condition, message.empty() ? "" : ": ", message));
}

}  // namespace bonfire::base
