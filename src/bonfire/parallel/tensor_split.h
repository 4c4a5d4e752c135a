#pragma once
// Which part of a model's variables each rank along the tensor axis holds: by the user's own splits, or by the plan
// that the model brings (nn/split.h). docs/model-parallel.md tells of it.

#include <span>
#include <string>
#include <vector>

#include "bonfire/comm/group.h"
#include "bonfire/nn/module.h"

namespace bonfire::fleet {

// Of a variable that ranks share out. Others are whole on each of them.
struct SharedOut {
  std::string name;
  Variable variable;
  int axis = 0;
  int64_t blocks = 1;

  Slice slice(int64_t place, int64_t parts) const;
};

struct TensorSplits {
  std::vector<SharedOut> shared;
  std::vector<std::string> left_whole;  // that the model's plan would split, and whose axes do not divide
};

// Of several paths that match a variable the longest counts; a tied variable is split once. `own` are the user's
// splits; empty: the model's plan counts. ConfigError where a path matches nothing (it lists what there is), where an
// axis does not exist or does not divide into equal parts, and where the model brings no plan.
TensorSplits tensor_splits(const nn::Module& model, std::span<const nn::Split> own, int64_t parts);

// Gives each variable its part on this rank. With `ranks`, a collective call: the first one's values are everybody's.
void share_out(const nn::Module& model, const TensorSplits& splits, int64_t place, int64_t parts,
               comm::Group* ranks = nullptr);

}  // namespace bonfire::fleet
