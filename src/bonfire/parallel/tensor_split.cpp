#include "bonfire/parallel/tensor_split.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "bonfire/base/error.h"
#include "bonfire/base/glob.h"
#include "bonfire/graph/step_context.h"

namespace bonfire::fleet {

namespace {

std::string names_in(const nn::StateDict& variables) {
  std::vector<std::string> names;
  for (const auto& [name, variable] : variables) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

// The split of the longest path that matches; null: none.
const nn::Split* split_for(const std::string& name, std::span<const nn::Split> splits) {
  const nn::Split* found = nullptr;
  for (const nn::Split& one : splits)
    if (base::matches(one.path, name) && (found == nullptr || one.path.size() >= found->path.size())) found = &one;
  return found;
}

bool divides(const Shape& shape, const nn::Split& split, int64_t parts) {
  return shape[split.axis] > 0 && shape[split.axis] % (split.blocks * parts) == 0;
}

void require_axis(const std::string& name, const Shape& shape, const nn::Split& split) {
  if (split.axis < 0 || split.axis >= shape.rank() || split.blocks < 1)
    throw_error<ConfigError>("[tensor] '{}' asks for axis {} in {} blocks, and {} is {}: expected an axis from 0 to {}",
                             split.path, split.axis, split.blocks, name, to_string(shape), shape.rank() - 1);
}

}  // namespace

Slice SharedOut::slice(int64_t place, int64_t parts) const {
  return Slice::part(variable.shape(), axis, place, parts, blocks);
}

TensorSplits tensor_splits(const nn::Module& model, std::span<const nn::Split> own, int64_t parts) {
  const bool is_own = !own.empty();
  const std::span<const nn::Split> splits = is_own ? own : model.splits();
  if (splits.empty())
    throw_error<ConfigError>(
        "[tensor] this model brings no plan for a tensor axis of {} ranks; say what they share out, tensor: {{split: "
        "{{\"fc1.weight\": 0}}}}",
        parts);
  const nn::StateDict variables = model.state_dict();
  for (const nn::Split& one : splits)
    if (std::ranges::none_of(variables, [&](const auto& named) { return base::matches(one.path, named.name); }))
      throw_error<ConfigError>("[tensor] '{}' matches nothing of the model; there are: {}", one.path,
                               names_in(variables));
  TensorSplits found;
  std::map<const VariableState*, SharedOut> seen;  // tied ones have several names
  for (const auto& [name, variable] : variables) {
    const nn::Split* split = split_for(name, splits);
    if (split == nullptr) continue;
    require_axis(name, variable.shape(), *split);
    auto [before, is_new] = seen.try_emplace(&variable.state(), SharedOut{name, variable, split->axis, split->blocks});
    if (!is_new) {
      if (before->second.axis != split->axis || before->second.blocks != split->blocks)
        throw_error<ConfigError>("[tensor] {} is {} under another name, and they are split along axes {} and {}", name,
                                 before->second.name, split->axis, before->second.axis);
      continue;
    }
    if (divides(variable.shape(), *split, parts)) {
      found.shared.push_back(before->second);
    } else if (is_own) {
      throw_error<ConfigError>(
          "[tensor] axis {} of {} {} cannot be shared out evenly among {} ranks{}; choose another axis ('{}'), or "
          "another mesh.tensor",
          split->axis, name, to_string(variable.shape()), parts,
          split->blocks == 1 ? "" : fmt::format(" in {} blocks", split->blocks), split->path);
    } else {
      found.left_whole.push_back(name);
    }
  }
  return found;
}

void share_out(const nn::Module& model, const TensorSplits& splits, int64_t place, int64_t parts, comm::Group* ranks) {
  if (StepContext::current().place.copies != nullptr)
    throw_error<ConfigError>(
        "[tensor] ranks that are threads of one process have copies of one model, which they cannot share out; start "
        "processes: --nproc {}",
        parts);
  std::map<const VariableState*, const SharedOut*> shared;
  for (const SharedOut& one : splits.shared) shared[&one.variable.state()] = &one;
  for (const auto& [name, variable] : model.state_dict()) {
    if (!variable.slice().is_all()) continue;  // under another name, or by the program itself
    auto found = shared.find(&variable.state());
    const bool is_split = found != shared.end();
    if (variable.state().gradient != nullptr && is_split)
      throw_error<ConfigError>(
          "[tensor] {} has a gradient already: call distributed_model before an optimizer is made of the model's "
          "parameters, and before backward()",
          name);
    std::vector<std::byte> values;
    if (ranks != nullptr) {
      values.resize(variable.spec().bytes());
      if (place == 0) values = variable.save();
      ranks->broadcast({values.data(), values.size(), DType::u8}, 0);
    }
    if (is_split) variable.keep_slice(found->second->slice(place, parts));
    if (ranks != nullptr && place != 0) variable.load(values);
  }
}

}  // namespace bonfire::fleet
