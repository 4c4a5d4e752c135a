#pragma once
// Pass: one change to a graph. Each lives in its own file, is usable alone in a test, and asks ops for traits.
//
//   Graph graph = ...;
//   passes::dead_code().run(graph, {});

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "bonfire/base/hash.h"
#include "bonfire/graph/graph.h"

namespace bonfire::passes {

// What the user chose; part of the plan key.
struct Options {
  bool use_amp = false;
  DType amp_dtype = DType::bf16;
  bool fuse_bn_act_ops = true;
  bool fuse_elewise_add_act_ops = true;  // an addition and the activation of its result in one kernel
  bool fuse_elementwise = true;          // chains of elementwise ops into one kernel
  bool fuse_all_reduce_ops = true;
  int64_t all_reduce_bytes = 0;      // of a merged all-reduce at most; 0: a tenth of all, less towards the end
  int64_t all_reduce_layers = 50;    // in a merged all-reduce at most
  int64_t communicators = 1;         // that the all-reduces of gradients use in turn
  int sync_batch_norm = -1;          // channel whose ranks share batch statistics; -1: none
  bool stand_ins = false;            // this rank's batch counts for nothing in them
  bool fast_math = false;            // kernels whose rounding error is beyond the bound (kernel.h) may be chosen
  bool rebuild_cheap_values = true;  // compute cheap values again in the backward pass instead of keeping them

  void mix_into(base::Hash128& hash) const;
};

class Pass {
 public:
  virtual ~Pass() = default;
  virtual std::string_view name() const = 0;
  virtual void run(Graph& graph, const Options& options) const = 0;
};

// In the order in which they run (autodiff has come before all of them).
std::span<const std::unique_ptr<Pass>> pipeline();

// Runs the pipeline; in debug builds, and when BONFIRE_VERIFY=1, the verifier follows each pass.
void run_pipeline(Graph& graph, const Options& options);

// This thread's options, used by its commits.
Options& current_options();

}  // namespace bonfire::passes
