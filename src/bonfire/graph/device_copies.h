#pragma once
// Operands on several devices. Modules of one model may stand on several devices (nn::Module::to), and the model's code
// does not change for it: where a value of one device meets an op on another, a copy is traced. It is an op like any
// other, so gradients flow back through it. A value is copied to a device once, whoever reads it there.
//
// On which device an op with operands of several runs, by the first of these that says so:
//   1. that of the variables among the operands, if they are on one: an op comes to its weights;
//   2. that of the first operand that was computed: labels, masks and weights that are tied to another module's follow;
// else it is an error of the op's shape rule.

#include "bonfire/graph/node.h"

namespace bonfire {

void bring_together(NodeInputs& operands);  // to one device, where a rule says to which

}  // namespace bonfire
