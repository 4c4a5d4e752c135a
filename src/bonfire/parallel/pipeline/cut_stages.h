#pragma once
// cut_stages: from the graph of a whole micro-batch to the programs of one stage.
//
// All ranks trace the same step and run the same passes on it until here, so they cut it alike, and know what the
// others send. Each value belongs to a stage: forward nodes by their module (forward_stages.h), nodes of the backward
// pass by the node whose gradient they compute. Constants, masks and whatever is made of inputs alone are computed
// wherever they are read, and so are views and casts of parameters: a parameter that two stages read (a tied one) is
// held by both, and each has the gradient of its own use. Every other value that a stage reads of another is sent to it
// directly, over however many stages between.
//
// A stage is fused as one graph, forward and backward pass together, and only then cut into programs: F is what its
// activations, results and running statistics are made of, B the rest, or with W apart what the gradients are made of
// that earlier stages wait for. Each program is a graph of its own. What it reads of an earlier program of its stage,
// or receives, is an input: a slot.

#include <array>
#include <map>
#include <memory>
#include <vector>

#include "bonfire/parallel/pipeline/forward_stages.h"
#include "bonfire/parallel/pipeline/schedule.h"
#include "bonfire/passes/pass.h"

namespace bonfire::pipeline {

enum class Part : uint8_t { forward, backward, weights };  // F, B, W
inline constexpr int kParts = 3;

// A value that lies in a slot between programs of a micro-batch.
struct SlotValue {
  TensorSpec spec;
  int from = -1;                 // the stage that sends it; -1: computed here
  Phase phase = Phase::forward;  // of that message
};

struct LeafSource {
  int leaf = -1;   // of the traced step
  int value = -1;  // or one in a slot
};

struct ProgramGraph {
  std::unique_ptr<Graph> graph;    // null: the stage has nothing to do there
  std::vector<LeafSource> leaves;  // by leaf_position
  std::vector<int> outputs;        // the values in slots that they are
  std::vector<int> assigned;       // leaves of the traced step
};

struct MessageOf {
  int value = -1;  // where this stage receives it: in which slot
  int from = 0, to = 0;
  Phase phase = Phase::forward;
  int64_t tag = 0;
  TensorSpec spec;
};

struct StageStep {
  // By what the gradients that it writes are: the first of a step, or added to those.
  std::array<ProgramGraph, kParts> writing, adding;
  std::vector<SlotValue> values;
  std::vector<MessageOf> messages;  // that this stage sends or receives, in their order
  std::vector<int> results;         // [results]: values in slots; -1: another stage has it
};

// The same for all stages, but for their programs.
struct CutStep {
  std::vector<StageStep> stages;  // those of other ranks are empty
  std::vector<Edge> edges;
  std::vector<int> result_stages;           // [results]
  std::map<int, std::vector<int>> holders;  // leaf of a variable → the stages that read or write it
};

struct CutStagesOptions {
  int stages = 1;
  int rank = 0, ranks = 1;      // stage i is on rank i % ranks
  bool splits_weights = false;  // W is apart from B
  passes::Options passes = {};  // of a stage
};

// The results are the graph's outputs. ConfigError where a stage reads what a later one computes, or two stages of a
// rank share a parameter. The graph is used up.
CutStep cut_stages(Graph& graph, const ForwardStages& forward, const CutStagesOptions& options);

}  // namespace bonfire::pipeline
