#pragma once
// ForwardStages: which stage of a pipeline each node of the forward pass belongs to, by the module that made it.
//
// A cut names the first module of each further stage, in the order in which the step runs through them:
// {"features.10", "classifier"} makes three stages. What a module computes belongs to its stage; nodes without a module
// (a flatten between two of them, the loss) follow the data, to the last stage that they read from.

#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "bonfire/graph/graph.h"
#include "bonfire/graph/tensor.h"

namespace bonfire::pipeline {

// Traces a micro-batch: from its rows of each input to the loss, a scalar, and other results. Nothing may be read in
// it.
using Forward = std::function<std::vector<Tensor>(std::span<const Tensor> inputs)>;

struct CutOptions {
  int stages = 1;
  std::vector<std::string> firsts = {};  // [stages - 1]
};

class ForwardStages {
 public:
  // Of a micro-batch as it has been traced, before any pass. ConfigError for a cut of another number of stages, with
  // modules that there are not (it lists those there are) or in another order, that leaves a stage empty, or that
  // divides a module.
  ForwardStages(const Graph& traced, const CutOptions& options);
  // Of another trace of the model, of other shapes or in eval mode: each module is where it was.
  ForwardStages(const Graph& traced, const ForwardStages& before);

  int of_number(int number) const;             // of the traced node; -1: of none
  int of_path(const std::string& path) const;  // -1: of none
  const std::vector<std::string>& firsts() const { return firsts_; }

 private:
  void share_out(const Graph& traced);

  std::vector<std::string> firsts_;
  std::vector<int> stages_;  // [numbers]
  std::unordered_map<std::string, int> of_path_;
};

}  // namespace bonfire::pipeline
