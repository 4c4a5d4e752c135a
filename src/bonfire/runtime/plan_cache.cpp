#include "bonfire/runtime/plan_cache.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <unordered_map>

#include "bonfire/base/error.h"
#include "bonfire/base/log.h"
#include "bonfire/kernel/forced_kernel.h"
#include "bonfire/runtime/planner.h"
#include "bonfire/runtime/tuning.h"

namespace bonfire::runtime {

namespace {

// What a plan was compiled for, line by line, kept to explain the next compilation.
struct Description {
  std::vector<std::string> inputs, nodes;
  std::string outputs, options, mesh;
};

struct Entry {
  std::shared_ptr<Plan> plan;
  std::shared_ptr<Description> description;
};

using ScratchBytes = std::map<Device, size_t>;

void note_scratch(const Plan& plan, ScratchBytes& most) {
  for (const PlanProgram& program : plan.programs) {
    size_t& bytes = most[program.program->device];
    bytes = std::max(bytes, program.arena_bytes);
  }
}

struct Cache {
  std::mutex mutex;
  std::unordered_map<base::Hash128, std::vector<Entry>> plans;
  CacheStatistics statistics;
  uint64_t submissions = 0;
  uint64_t release_every = 100;  // submissions
  ScratchBytes scratch;          // that submissions have used since the last release, at most
};

Cache& cache() {
  static Cache instance;
  return instance;
}

size_t drop_unused(Cache& plans, uint64_t submissions) {
  size_t dropped = 0;
  for (auto& [key, entries] : plans.plans)
    dropped += std::erase_if(
        entries, [&](const Entry& entry) { return entry.plan->last_used + submissions < plans.submissions; });
  std::erase_if(plans.plans, [](const auto& item) { return item.second.empty(); });
  return dropped;
}

base::Hash128 key_of(Trace& trace, std::span<const Value> live, const passes::Options& options) {
  base::Hash128 key = trace.hash();
  for (const Value& value : live) {
    bool pending = trace.pending(value);
    uint64_t position = pending ? value.node->position : trace.leaf_position(value);
    key.mix((static_cast<uint64_t>(!pending) << 63) | (position << 32) | value.index);
  }
  key.mix(live.size());
  mix_surroundings(key, options, trace.context().mesh);
  return key;
}

std::vector<LeafLayout> leaf_layouts(const Trace& trace) {
  std::vector<LeafLayout> layouts;
  for (const Value& leaf : trace.leaves()) {
    const Node& node = *leaf.node;
    if (node.leaf == LeafKind::variable) {
      layouts.push_back({node.variable->layout, node.variable->layout_fixed});
    } else {
      layouts.push_back({{}, true});
    }
  }
  return layouts;
}

std::string text_of(const Mesh& mesh) {
  return mesh.world() == 1 ? to_string(mesh) : fmt::format("rank {} of {}", mesh.rank(), to_string(mesh));
}

std::shared_ptr<Description> describe(const Trace& trace, std::span<const Value> live, const passes::Options& options) {
  auto description = std::make_shared<Description>();
  for (const Value& leaf : trace.leaves()) description->inputs.push_back(to_string(leaf.spec()));
  for (const NodePtr& node : trace.nodes()) {
    std::string text =
        "[" + node->op->name + "] " + to_string(node->attributes) + " -> " + to_string(node->outputs[0].spec);
    if (node->path != nullptr) text += " in module " + *node->path;
    description->nodes.push_back(std::move(text));
  }
  for (const Value& value : live)
    description->outputs += (trace.pending(value) ? std::to_string(value.node->position) : "old variable") + " ";
  base::Hash128 hash;
  options.mix_into(hash);
  description->options = std::to_string(hash.low);
  description->mesh = text_of(trace.context().mesh);
  return description;
}

// How many leading nodes two traces share.
size_t common_nodes(const Description& a, const Description& b) {
  size_t same = 0;
  while (same < a.nodes.size() && same < b.nodes.size() && a.nodes[same] == b.nodes[same]) ++same;
  return same;
}

// The earlier plan with the highest likeness is the one to compare with.
size_t likeness(const Description& a, const Description& b) {
  size_t same = common_nodes(a, b);
  for (size_t i = 0; i < a.inputs.size() && i < b.inputs.size(); ++i) same += a.inputs[i] == b.inputs[i] ? 1 : 0;
  return same;
}

std::string explain(const Description& now, const Description* before) {
  if (before == nullptr) return "it is the first plan of this process";
  if (now.mesh != before->mesh) return fmt::format("the mesh was {} and is now {}", before->mesh, now.mesh);
  for (size_t i = 0; i < now.inputs.size() && i < before->inputs.size(); ++i)
    if (now.inputs[i] != before->inputs[i])
      return fmt::format("input {} was {} and is now {}", i, before->inputs[i], now.inputs[i]);
  size_t same = common_nodes(now, *before);
  if (same < now.nodes.size() && same < before->nodes.size())
    return fmt::format("node {} was {} and is now {}", same, before->nodes[same], now.nodes[same]);
  if (now.nodes.size() != before->nodes.size())
    return fmt::format("the step has {} nodes, the nearest plan has {}{}", now.nodes.size(), before->nodes.size(),
                       now.nodes.size() > same ? "; the first new one is " + now.nodes[same] : std::string());
  if (now.options != before->options) return "the pass options are others";
  if (now.outputs != before->outputs)
    return fmt::format("other values are held by the caller: outputs of nodes {} instead of {}", now.outputs,
                       before->outputs);
  return "the same ops are wired another way, assign other variables, or find variables in another layout";
}

}  // namespace

bool layouts_fit(const Plan& plan, std::span<const Value> leaves) {
  for (size_t i = 0; i < leaves.size(); ++i) {
    const Node& node = *leaves[i].node;
    if (node.leaf == LeafKind::variable && plan.leaf_layout_used[i] && node.variable->layout_fixed &&
        !(node.variable->layout == plan.leaf_layouts[i]))
      return false;
  }
  return true;
}

void mix_surroundings(base::Hash128& key, const passes::Options& options, const Mesh& mesh) {
  options.mix_into(key);
  mesh.mix_into(key);
  key.mix(std::string_view(forced_kernel()));
}

std::shared_ptr<Plan> find_or_compile(Trace& trace, std::span<const Value> live, const passes::Options& options) {
  base::Hash128 key = key_of(trace, live, options);
  Cache& plans = cache();
  {
    std::lock_guard lock(plans.mutex);
    if (auto found = plans.plans.find(key); found != plans.plans.end()) {
      for (Entry& entry : found->second) {
        if (!layouts_fit(*entry.plan, trace.leaves())) continue;
        ++plans.statistics.hits;
        return entry.plan;
      }
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  auto description = describe(trace, live, options);
  std::shared_ptr<Plan> plan = make_plan(Graph::from_trace(trace, live), {leaf_layouts(trace)}, options);
  save_tuning();
  std::lock_guard lock(plans.mutex);
  plans.statistics.seconds_compiling += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const Description* nearest = nullptr;
  for (const auto& [other, entries] : plans.plans)
    for (const Entry& entry : entries)
      if (nearest == nullptr || likeness(*description, *entry.description) > likeness(*description, *nearest))
        nearest = entry.description.get();
  ++plans.statistics.compiled;
  plans.statistics.last_reason = explain(*description, nearest);
  base::log_debug("[plan] a step is compiled: {}", plans.statistics.last_reason);
  plan->last_used = plans.submissions;
  plans.plans[key].push_back({plan, std::move(description)});
  return plan;
}

void set_release_frequency(int64_t submissions) {
  if (submissions < 1)
    throw_error<ConfigError>("[runtime] num_iteration_per_drop_scope is {}, expected at least 1", submissions);
  std::lock_guard lock(cache().mutex);
  cache().release_every = static_cast<uint64_t>(submissions);
}

int64_t release_frequency() {
  std::lock_guard lock(cache().mutex);
  return static_cast<int64_t>(cache().release_every);
}

void note_submission(Plan& plan) {
  Cache& plans = cache();
  std::lock_guard lock(plans.mutex);
  plan.last_used = ++plans.submissions;
  note_scratch(plan, plans.scratch);
  if (plans.submissions % plans.release_every != 0) return;
  ++plans.statistics.releases;
  plans.statistics.dropped += drop_unused(plans, kDropAfter);
  for (const auto& [key, entries] : plans.plans)
    for (const Entry& entry : entries) note_scratch(*entry.plan, plans.scratch);
  for (const auto& [device, bytes] : std::exchange(plans.scratch, {})) queue_of(device).release_scratch(bytes);
}

CacheStatistics cache_statistics() {
  std::lock_guard lock(cache().mutex);
  return cache().statistics;
}

std::vector<std::shared_ptr<Plan>> cached_plans() {
  std::lock_guard lock(cache().mutex);
  std::vector<std::shared_ptr<Plan>> all;
  for (const auto& [key, entries] : cache().plans)
    for (const Entry& entry : entries) all.push_back(entry.plan);
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a->last_used > b->last_used; });
  return all;
}

void clear_plan_cache() {
  std::lock_guard lock(cache().mutex);
  cache().plans.clear();
  cache().statistics = {};
}

size_t drop_unused_plans(uint64_t submissions) {
  Cache& plans = cache();
  std::lock_guard lock(plans.mutex);
  return drop_unused(plans, submissions);
}

}  // namespace bonfire::runtime
