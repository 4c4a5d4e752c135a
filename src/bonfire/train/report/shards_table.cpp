#include "bonfire/train/report/shards_table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "bonfire/base/error.h"
#include "bonfire/graph/step_context.h"
#include "bonfire/ops/loss.h"
#include "bonfire/parallel/tensor_split.h"
#include "bonfire/passes/common_subexpressions.h"
#include "bonfire/passes/dead_code.h"
#include "bonfire/train/report/number_text.h"

namespace bonfire::train {

namespace {

// A mesh without groups: steps are traced for it, none is run.
class MeshToLookAt {
 public:
  explicit MeshToLookAt(int parts) { StepContext::current().mesh = Mesh::of(0, parts, {.tensor = parts}); }
  ~MeshToLookAt() { StepContext::current().mesh = {}; }
  MeshToLookAt(const MeshToLookAt&) = delete;
  MeshToLookAt& operator=(const MeshToLookAt&) = delete;
};

std::vector<passes::Gathered> gathered_in_step(const StepSubject& subject, int parts) {
  const MeshToLookAt mesh(parts);
  Trace trace;
  TraceScope scope(trace);
  const Tensor logits = subject.model(subject.input);
  const Tensor loss = subject.loss ? subject.loss(logits, subject.target) : cross_entropy(logits, subject.target);
  loss.backward();
  const Value live[] = {loss.value()};
  const std::unique_ptr<Graph> graph = Graph::from_trace(trace, live);
  for (const auto& pass : {passes::dead_code(), passes::common_subexpressions(), passes::shard(), passes::dead_code()})
    pass->run(*graph, {});
  return passes::gathered_in(*graph);
}

std::string split_text(const fleet::SharedOut& one) {
  return one.blocks == 1 ? fmt::format("axis {}", one.axis) : fmt::format("axis {} in {} blocks", one.axis, one.blocks);
}

}  // namespace

std::string in_words(const std::vector<passes::Gathered>& gathered) {
  std::map<std::pair<std::string, std::string>, int64_t> bytes;
  for (const passes::Gathered& one : gathered) bytes[{one.op, one.path}] += one.bytes;
  std::vector<std::string> words;
  for (const auto& [reader, count] : bytes)
    words.push_back(fmt::format("{} ({}{})", reader.first, reader.second.empty() ? "" : reader.second + ", ",
                                byte_text(static_cast<double>(count))));
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string shards_table(const StepSubject& subject, const Config& config) {
  const auto parts = static_cast<int>(config.mesh.tensor);
  if (parts < 2)
    throw_error<ConfigError>("[inspect] shards are of a tensor axis; say how many ranks it has: mesh.tensor=2");
  const fleet::TensorSplits splits = fleet::tensor_splits(subject.model, splits_of(config), parts);
  const nn::StateDict variables = subject.model.state_dict();
  size_t width = 9;
  for (const auto& [name, variable] : variables) width = std::max(width, name.size());
  std::string text =
      fmt::format("{:<{}}  {:<20}  {:<20}  on each of {} ranks\n", "parameter", width, "whole", "split", parts);
  int64_t all = 0, here = 0;
  std::map<const VariableState*, const fleet::SharedOut*> shared;
  for (const fleet::SharedOut& one : splits.shared) shared[&one.variable.state()] = &one;
  std::map<const VariableState*, std::string> seen;
  for (const auto& [name, variable] : variables) {
    const auto found = shared.find(&variable.state());
    const bool is_split = found != shared.end();
    const Shape local = is_split ? found->second->slice(0, parts).local() : variable.shape();
    const auto [first, is_new] = seen.try_emplace(&variable.state(), name);
    const bool does_not_divide = std::ranges::find(splits.left_whole, name) != splits.left_whole.end();
    text += fmt::format("{:<{}}  {:<20}  {:<20}  {}{}\n", name, width, to_string(variable.shape()),
                        is_split          ? split_text(*found->second)
                        : does_not_divide ? "whole: no equal parts"
                                          : "whole",
                        to_string(local), is_new ? "" : " (the same as " + first->second + ")");
    if (!is_new) continue;
    all += variable.shape().count();
    here += local.count();
  }
  text += fmt::format("{} of {} numbers are on each rank\n", grouped(here), grouped(all));
  fleet::share_out(subject.model, splits, 0, parts);
  const std::string gathered = in_words(gathered_in_step(subject, parts));
  return text + (gathered.empty() ? "no op gathers what ranks have parts of\n"
                                  : "ops that have no rule for parts, and gather: " + gathered + "\n");
}

}  // namespace bonfire::train
