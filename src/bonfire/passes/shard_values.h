#pragma once
// How the values of a step lie while the pass `shard` goes through it, and how they are brought to lie otherwise.

#include <map>

#include "bonfire/graph/sharding.h"
#include "bonfire/graph/slice.h"

namespace bonfire::passes {

class ShardValues {
 public:
  ShardValues(Graph& graph, int64_t parts, int64_t place) : graph_(graph), parts_(parts), place_(place) {}

  // Of a value of the traced graph; those that nothing was said of are whole and as they were.
  const Sharding& sharding(GraphValue value) const;
  void set(GraphValue value, const Sharding& sharding, GraphValue local, GraphValue added = {});
  bool is_as_traced(GraphValue value) const;  // whole, and nothing stands for it

  // The same, lying so. Nodes that this takes stand before `before` and look like `like`; `reader` is an op that has
  // no rule for parts, for gathered_in().
  GraphValue as(GraphValue value, const Sharding& wanted, GraphNode* before, const GraphNode& like,
                const Op* reader = nullptr);
  GraphValue as_whole(GraphValue value, GraphNode* before, const GraphNode& like, const Op* reader = nullptr) {
    return as(value, {}, before, like, reader);
  }
  // Of partial sums: what is to be added when they are complete; none where that is nothing.
  GraphValue added_later(GraphValue value) const;

 private:
  struct Held {
    Sharding sharding;
    GraphValue local, added;
    std::vector<std::pair<Sharding, GraphValue>> other;  // ways in which it lies besides
  };
  using Key = std::pair<const GraphNode*, int>;

  GraphValue make_whole(const Held& held, GraphNode* before, const GraphNode& like, const Op* reader);
  GraphValue gather(GraphValue local, const Sharding& split, GraphNode* before, const GraphNode& like,
                    const Op* reader);
  GraphValue own_part(GraphValue whole, const Sharding& split, GraphNode* before, const GraphNode& like);

  Graph& graph_;
  int64_t parts_, place_;
  std::map<Key, Held> held_;
};

}  // namespace bonfire::passes
