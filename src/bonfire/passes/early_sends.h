#pragma once
// early_sends: puts each send in front of the steps that wait for a receive which does not concern it, and what it
// sends with it: two ranks that send to each other, and use what they receive first, would wait for each other. Else it
// stands where its operand is made. Sends to one rank keep their order, and so do collectives and receives.

#include <memory>

#include "bonfire/passes/pass.h"

namespace bonfire::passes {

std::unique_ptr<Pass> early_sends();

}  // namespace bonfire::passes
