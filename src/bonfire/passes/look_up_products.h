#pragma once
// look_up_products: rows that are looked up in a small table and then multiplied are looked up in the product of the
// table. A layer after an embedding of 1,000 characters or words multiplies 1,000 rows then, not one for every word of
// the batch; its gradients are made of the sums of each word's rows. Only where the table has at most half as many rows
// as are looked up, and rows of 32 numbers or more, in f32 and f64 (sums of bf16 would be rounded once more), on
// devices whose products are dear (kernel/device_costs.h). A row that is not finite then spoils the weight's gradient
// even where nobody looks it up. Comes after fuse_linear_cross_entropy, which would not know a product that is looked
// up. What is no longer needed is left to dead_code.

#include <memory>

#include "bonfire/passes/pass.h"

namespace bonfire::passes {

std::unique_ptr<Pass> look_up_products();

}  // namespace bonfire::passes
