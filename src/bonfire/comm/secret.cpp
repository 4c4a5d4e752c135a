#include "bonfire/comm/secret.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <cstdint>

#include "bonfire/base/error.h"
#include "bonfire/base/sha256.h"

namespace bonfire::comm {

std::string random_secret() {
  uint64_t random[2] = {};
  if (::getrandom(random, sizeof random, 0) != sizeof random)
    throw_error<CommError>("[secret] the system gives no random numbers");
  return fmt::format("{:016x}{:016x}", random[0], random[1]);
}

bool same_secret(std::string_view given, std::string_view expected) {
  unsigned difference = given.size() != expected.size();
  for (size_t i = 0; i < given.size(); ++i)
    difference |= static_cast<unsigned char>(given[i]) ^
                  static_cast<unsigned char>(expected.empty() ? 0 : expected[i % expected.size()]);
  return difference == 0;
}

std::string pass_of(std::string_view token) { return base::sha256("a pass to Bonfire's store: " + std::string(token)); }

}  // namespace bonfire::comm
