#pragma once
// Mixed precision for programs of one's own; a DistributedStrategy and the trainer have use_amp.
//
//   use_mixed_precision();  // products and convolutions compute in bf16; sums, weights and updates stay in f32

namespace bonfire {

void use_mixed_precision(bool on = true);  // for the steps of this thread from now on
bool uses_mixed_precision();

}  // namespace bonfire
