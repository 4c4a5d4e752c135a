#pragma once
// StepOptions: what the user chose for the passes that compile a step. Part of the key of every plan.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bonfire/base/hash.h"
#include "bonfire/tensor/device.h"
#include "bonfire/tensor/dtype.h"

namespace bonfire {

// What a step may take of each device: parameters, gradients, optimizer states, batches and temporaries together.
struct MemoryBudget {
  enum class Kind : uint8_t { none, bytes, share, automatic };  // share: of the device's memory; automatic: most of it
  Kind kind = Kind::none;
  double amount = 0;
  int sharers = 1;                                     // processes among which a host's memory is shared out
  std::vector<std::pair<Device, uint64_t>> held = {};  // bytes that the job holds between steps, at least

  explicit operator bool() const { return kind != Kind::none; }
};

struct StepOptions {
  bool use_amp = false;  // products and convolutions in amp_dtype
  DType amp_dtype = DType::bf16;
  bool fuse_bn_act_ops = true;
  bool fuse_elewise_add_act_ops = true;  // an addition and the activation of its result in one kernel
  bool fuse_elementwise = true;          // chains of elementwise ops into one kernel
  bool fuse_all_reduce_ops = true;
  int64_t all_reduce_bytes = 0;             // of a merged all-reduce at most; 0: a tenth of all, less towards the end
  int64_t all_reduce_layers = 50;           // in a merged all-reduce at most
  int64_t communicators = 1;                // that the all-reduces of gradients use in turn
  bool sync_batch_norm = false;             // ranks along the data axis share batch statistics
  bool stand_ins = false;                   // this rank's batch counts for nothing in them
  bool fast_math = false;                   // kernels whose rounding error is beyond the bound (kernel.h) may be chosen
  bool rebuild_cheap_values = true;         // compute cheap values again in the backward pass instead of keeping them
  std::vector<std::string> recompute = {};  // modules that the backward pass computes again (passes/recompute.h)
  MemoryBudget memory_budget = {};          // kept to by computing more again (runtime/memory_budget.h)

  void mix_into(base::Hash128& hash) const;
};

}  // namespace bonfire
