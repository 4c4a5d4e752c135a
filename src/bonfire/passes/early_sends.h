#pragma once
// early_sends: puts each send where its operand is made, in front of steps that wait for other ranks and do not concern
// it: two ranks that send to each other, and use what they receive first, would wait for each other. Those to one rank
// keep their order.

#include <memory>

#include "bonfire/passes/pass.h"

namespace bonfire::passes {

std::unique_ptr<Pass> early_sends();

}  // namespace bonfire::passes
