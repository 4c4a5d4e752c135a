// The twin of gloo_group.cpp where Gloo is not there to build with.
#include "bonfire/base/error.h"
#include "bonfire/comm/gloo/gloo_group.h"
#include "bonfire/comm/group_backend.h"

namespace bonfire::comm {

std::shared_ptr<Group> gloo_group(const Membership&, const GlooOptions&) {
  throw_error<ConfigError>("[gloo] this Bonfire was built without Gloo; install libgloo-dev and build it again");
}

bool has_gloo() { return false; }

namespace {
const bool gloo_registered = register_group_backend(
    "gloo", [](const GroupRequest& request) { return gloo_group(request.membership, {.address = request.address}); });
}  // namespace

}  // namespace bonfire::comm
