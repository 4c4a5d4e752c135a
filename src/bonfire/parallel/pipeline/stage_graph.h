#pragma once
// A stage of a micro-batch's step as one graph, and its programs F, B and W, which are cut from it when it has been
// fused.

#include <memory>
#include <unordered_map>
#include <vector>

#include "bonfire/parallel/pipeline/cut_stages.h"

namespace bonfire::pipeline {

// Takes a value that comes from a later stage, and what this stage computes before that stage can; gives the value. It
// keeps passes from making one node of what is computed before and after, and is gone when the programs are cut.
extern const Op& after_forward_op;

struct StageGraph {
  std::unique_ptr<Graph> graph;                      // its outputs are the results that this stage has
  std::vector<LeafSource> leaves;                    // by leaf_position
  std::unordered_map<const GraphNode*, Phase> sent;  // each send
  std::vector<Part> result_parts, assigned_parts;    // F: computed before anything of another stage's B comes
  StageStep step;                                    // values that are received, then results; messages
};

StageStep cut_programs(StageGraph stage, bool splits_weights);

}  // namespace bonfire::pipeline
