#include "bonfire/parallel/pipeline/balanced_cut.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "bonfire/base/error.h"
#include "bonfire/parallel/pipeline/visited_modules.h"
#include "bonfire/passes/pass.h"
#include "bonfire/runtime/node_times.h"
#include "bonfire/runtime/profile.h"

namespace bonfire::pipeline {
namespace {

int number_in_forward(const GraphNode& node) { return node.phase == Phase::forward ? node.number : node.origin; }

std::vector<StepCosts::Node> estimated(const Graph& traced) {
  // As long as it takes to read so many bytes, a core multiplies about so many numbers.
  constexpr double kOperationsOfByte = 8;
  std::vector<StepCosts::Node> nodes;
  for (const GraphNode& node : traced.nodes()) {
    if (node.is_input() || node.op->has(Trait::view)) continue;
    double bytes = 0;
    for (const GraphValue& input : node.inputs) bytes += static_cast<double>(input.spec().bytes());
    for (const TensorSpec& output : node.outputs) bytes += static_cast<double>(output.bytes());
    nodes.push_back({number_in_forward(node), node.path, runtime::operations_of(node) + kOperationsOfByte * bytes,
                     node.phase == Phase::forward});
  }
  return nodes;
}

// What a module needs memory for.
struct ModuleLoad {
  double cost = 0, parameters = 0, kept = 0;  // the last two: bytes
  bool computes = false;                      // in the forward pass, by itself
};

// A view's memory is that of what it is a view of.
const GraphNode* behind_views(const GraphNode* node) {
  while (!node->is_input() && node->op->has(Trait::view)) node = node->inputs[0].node;
  return node;
}

std::vector<ModuleLoad> loads_of(const Graph& traced, const StepCosts& costs, const VisitedModules& modules) {
  std::vector<ModuleLoad> loads(modules.size());
  for (const StepCosts::Node& one : costs.nodes) {
    const int by_number = modules.of_number(one.number);
    const int module = by_number >= 0 ? by_number : modules.of_path(one.path);
    if (module < 0) continue;
    loads[static_cast<size_t>(module)].cost += one.cost;
    loads[static_cast<size_t>(module)].computes |= one.forward;
  }
  std::unordered_set<const GraphNode*> seen;
  for (const GraphNode& node : traced.nodes()) {
    if (node.is_input()) continue;
    for (const GraphValue& input : node.inputs) {
      const GraphNode* read = behind_views(input.node);
      if (read->leaf == LeafKind::variable) {
        const int module = modules.of_node(node);
        if (module >= 0 && seen.insert(read).second)
          loads[static_cast<size_t>(module)].parameters += static_cast<double>(read->outputs[0].bytes());
        continue;
      }
      if (read->is_input() || read->phase != Phase::forward || node.phase == Phase::forward) continue;
      const int module = modules.of_node(*read);
      if (module < 0 || !seen.insert(read).second) continue;
      for (const TensorSpec& output : read->outputs)
        loads[static_cast<size_t>(module)].kept += static_cast<double>(output.bytes());
    }
  }
  return loads;
}

// What stage `stage` costs if it has the modules from `begin` to before `end`; infinity: it must not.
using CostOfStage = std::function<double(int stage, size_t begin, size_t end)>;

struct Stages {
  std::vector<size_t> begins;  // [stages - 1], of the further ones
  double worst = 0;
};

// `ends`: where a stage may end. `best[k][e]` is the worst of k + 1 stages that end at ends[e].
Stages least_worst(const std::vector<size_t>& ends, int stages, const CostOfStage& cost) {
  const size_t count = ends.size();
  const auto all = static_cast<size_t>(stages);
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(all, std::vector<double>(count, kNever));
  std::vector<std::vector<size_t>> before(all, std::vector<size_t>(count));
  for (size_t e = 0; e < count; ++e) best[0][e] = cost(0, 0, ends[e]);
  for (size_t k = 1; k < all; ++k)
    for (size_t e = 0; e < count; ++e)
      for (size_t b = k - 1; b < e; ++b) {
        const double worst = std::max(best[k - 1][b], cost(static_cast<int>(k), ends[b], ends[e]));
        if (worst >= best[k][e]) continue;
        best[k][e] = worst;
        before[k][e] = b;
      }
  Stages found{.begins = {}, .worst = best[all - 1][count - 1]};
  size_t end = count - 1;
  for (size_t k = all - 1; k > 0; --k) {
    end = before[k][end];
    found.begins.insert(found.begins.begin(), ends[end]);
  }
  return found;
}

}  // namespace

StepCosts costs_of(const Graph& traced, const StepOptions& options) {
  const std::unique_ptr<Graph> graph = traced.copy();
  passes::run_before_cut(*graph, options);
  const auto measured = runtime::measured_nodes(*graph, passes::after_cut(options));
  if (!measured) return {.measured = false, .nodes = estimated(traced)};
  StepCosts costs{.measured = true, .nodes = {}};
  for (const runtime::MeasuredNode& one : *measured)
    costs.nodes.push_back(
        {number_in_forward(*one.node), one.node->path, one.seconds, one.node->phase == Phase::forward});
  return costs;
}

namespace {

class Balancer {
 public:
  Balancer(const Graph& traced, const StepCosts& costs, const BalanceOptions& options)
      : options_(options),
        modules_(traced),
        measured_(costs.measured),
        slots_(make_schedule({.kind = options.schedule,
                              .stages = options.stages / options.chunks,
                              .micro_batches = options.micro_batches,
                              .chunks = options.chunks})
                   .slots) {
    for (const ModuleLoad& one : loads_of(traced, costs, modules_)) {
      until_.push_back(
          {until_.back().cost + one.cost, until_.back().parameters + one.parameters, until_.back().kept + one.kept});
      computes_.push_back(one.computes);
    }
    find_readers(traced);
  }

  BalancedCut run() const {
    const std::vector<size_t> begins = options_.firsts ? begins_of(*options_.firsts) : best_begins();
    BalancedCut cut{.firsts = {}, .measured = measured_, .loads = {}};
    for (int stage = 0; stage < options_.stages; ++stage) {
      const auto k = static_cast<size_t>(stage);
      const size_t begin = stage == 0 ? 0 : begins[k - 1], end = k < begins.size() ? begins[k] : modules_.size();
      if (stage > 0) cut.firsts.push_back(options_.firsts ? (*options_.firsts)[k - 1] : modules_[begin].path);
      cut.loads.push_back({cost_of(begin, end), bytes_of(stage, begin, end)});
    }
    return cut;
  }

 private:
  double cost_of(size_t begin, size_t end) const { return until_[end].cost - until_[begin].cost; }
  double bytes_of(int stage, size_t begin, size_t end) const {
    const int slots = slots_[static_cast<size_t>(stage)];
    return 2 * (until_[end].parameters - until_[begin].parameters) + slots * (until_[end].kept - until_[begin].kept);
  }

  void find_readers(const Graph& traced) {
    std::vector<size_t> last_reader(modules_.size());
    for (const GraphNode& node : traced.nodes()) {
      const int reader = node.is_input() || node.phase != Phase::forward ? -1 : modules_.of_node(node);
      for (const GraphValue& input : node.inputs) {
        const int maker = input.node->is_input() ? -1 : modules_.of_node(*input.node);
        if (maker < 0 || reader < 0) continue;
        size_t& last = last_reader[static_cast<size_t>(maker)];
        last = std::max(last, static_cast<size_t>(reader));
      }
    }
    for (size_t last : last_reader) read_until_.push_back(std::max(read_until_.back(), last));
  }

  // Whether something goes from a stage before it to one after it. Where a rank has several stages these may be two of
  // one rank, which cannot be.
  bool is_passed_by(size_t begin, size_t end) const { return begin > 0 && read_until_[begin] >= end; }

  std::vector<size_t> begins_of(const std::vector<std::string>& firsts) const {
    std::vector<size_t> begins;
    for (const std::string& first : firsts) {
      const std::optional<size_t> found = modules_.first_in(first);
      if (!found) throw_error<ConfigError>("[pipeline] the step runs through no module '{}'", first);
      begins.push_back(*found);
    }
    BONFIRE_CHECK(begins.size() + 1 == static_cast<size_t>(options_.stages));
    return begins;
  }

  // Where a stage may end, of modules that compute by themselves: before one of these. What is made of inputs alone is
  // computed by whoever reads it, so the first stage has a parameter.
  std::vector<size_t> possible_ends(bool by_themselves) const {
    std::vector<size_t> ends;
    for (size_t i = 1; i < modules_.size(); ++i)
      if (until_[i].parameters > 0 && modules_.may_begin_stage(i) && (computes_[i] || !by_themselves))
        ends.push_back(i);
    ends.push_back(modules_.size());
    return ends;
  }

  std::vector<size_t> best_begins() const {
    std::vector<size_t> ends = possible_ends(measured_);
    if (ends.size() < static_cast<size_t>(options_.stages)) ends = possible_ends(false);
    if (modules_.size() == 0 || ends.size() < static_cast<size_t>(options_.stages))
      throw_error<ConfigError>("[pipeline] the step can be cut into {} stages at most, {} were asked for: {}",
                               modules_.size() == 0 ? 0 : ends.size(), options_.stages,
                               modules_.size() == 0 ? "no module makes a node" : modules_.names());
    constexpr double kAsGood = 1.02, kNever = std::numeric_limits<double>::infinity();
    bool may_be_passed = options_.chunks == 1;
    const auto cost = [&](int, size_t begin, size_t end) {
      return may_be_passed || !is_passed_by(begin, end) ? cost_of(begin, end) : kNever;
    };
    Stages quickest = least_worst(ends, options_.stages, cost);
    if (quickest.worst == kNever) {
      may_be_passed = true;
      quickest = least_worst(ends, options_.stages, cost);
    }
    const Stages smallest = least_worst(ends, options_.stages, [&](int stage, size_t begin, size_t end) {
      return cost(stage, begin, end) <= kAsGood * quickest.worst ? bytes_of(stage, begin, end) : kNever;
    });
    return smallest.begins;
  }

  const BalanceOptions& options_;
  const VisitedModules modules_;
  const bool measured_;
  const std::vector<int> slots_;      // [stages]
  std::vector<ModuleLoad> until_{1};  // sums
  std::vector<bool> computes_;
  std::vector<size_t> read_until_{0};  // [modules]: the last one that reads what those before it make
};

}  // namespace

BalancedCut balance_stages(const Graph& traced, const StepCosts& costs, const BalanceOptions& options) {
  return Balancer(traced, costs, options).run();
}

std::string to_string(const BalancedCut& cut) {
  std::vector<std::string> numbers;
  double all = 0;
  for (const StageLoad& load : cut.loads) all += load.cost;
  for (const StageLoad& load : cut.loads)
    numbers.push_back(cut.measured ? fmt::format("{:.3g}", 1e3 * load.cost)
                                   : fmt::format("{:.0f} %", all > 0 ? 100 * load.cost / all : 0));
  return cut.measured
             ? fmt::format("by measured times of kernels: {} ms a micro-batch", fmt::join(numbers, ", "))
             : fmt::format("by operations and bytes, since no times were measured: {}", fmt::join(numbers, ", "));
}

std::string encode(const BalancedCut& cut) {
  nlohmann::json loads = nlohmann::json::array();
  for (const StageLoad& load : cut.loads) loads.push_back({load.cost, load.bytes});
  return nlohmann::json{{"firsts", cut.firsts}, {"measured", cut.measured}, {"loads", loads}}.dump();
}

BalancedCut decode_cut(const std::string& text) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    BalancedCut cut{.firsts = json.at("firsts"), .measured = json.at("measured"), .loads = {}};
    for (const nlohmann::json& load : json.at("loads")) cut.loads.push_back({load.at(0), load.at(1)});
    return cut;
  } catch (const nlohmann::json::exception& error) {
    throw_error<DataError>("[pipeline] not a cut: {}", error.what());
  }
}

}  // namespace bonfire::pipeline
