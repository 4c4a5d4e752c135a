#pragma once
// The cross-entropy of logits whose classes are shared out among ranks. Each rank has the maximum, Σ exp and, where the
// target is one of its classes, the logit of the target; of these, numbers of one row each, ranks make those of all
// classes. So logits of a large vocabulary are never gathered.

#include "bonfire/graph/sharding.h"

namespace bonfire {

ShardRuleResult shard_cross_entropy(const ShardContext& context);
ShardRuleResult shard_cross_entropy_gradient(const ShardContext& context);

}  // namespace bonfire
