#include "bonfire/graph/feed.h"

#include "bonfire/graph/node.h"
#include "bonfire/graph/variable.h"

namespace bonfire {

Tensor make_feed(const TensorSpec& spec) {
  auto node = base::make_intrusive<Node>();
  node->leaf = LeafKind::feed;
  node->committed = true;
  node->outputs.emplace_back(spec);
  return Tensor(Value{std::move(node), 0});
}

Value any_version(const Value& leaf) {
  auto node = base::make_intrusive<Node>();
  node->leaf = LeafKind::variable;
  node->variable = leaf.node->variable;
  node->version = Node::kAnyVersion;
  node->outputs.emplace_back(leaf.spec());
  return {std::move(node), 0};
}

}  // namespace bonfire
