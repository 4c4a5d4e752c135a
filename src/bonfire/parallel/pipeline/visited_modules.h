#pragma once
// The modules that a step runs through, in its order: between them a pipeline may be cut.

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "bonfire/graph/graph.h"

namespace bonfire::pipeline {

struct VisitedModule {
  std::string path;
  size_t first = 0, last = 0;  // of its nodes, among those with a path
};

class VisitedModules {
 public:
  explicit VisitedModules(const Graph& traced);

  size_t size() const { return list_.size(); }
  const VisitedModule& operator[](size_t module) const { return list_[module]; }
  // Where a traced node of the forward pass is computed: its own module, else the last one that it reads from. -1: of
  // inputs alone.
  int of_number(int number) const;
  int of_path(const std::string& path) const;
  // Of a node of either pass, before or after passes: that of the node whose gradient it computes.
  int of_node(const GraphNode& node) const;
  // The first one that is the named module or inside it.
  std::optional<size_t> first_in(const std::string& name) const;
  bool may_begin_stage(size_t module) const;  // those before it are done when it begins, and its name finds it
  std::string names() const;                  // for errors

 private:
  std::vector<VisitedModule> list_;
  std::unordered_map<std::string, int> of_path_;
  std::vector<int> of_number_;
};

}  // namespace bonfire::pipeline
