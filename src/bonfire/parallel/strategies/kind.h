#pragma once
// How the options of a DistributedStrategy are built: each kind of strategy is a file in this folder, which says what
// its options may be, what ranks must agree on, what it does to the steps of a thread, and what of it belongs into a
// checkpoint. It knows no other kind. kinds.cpp lists them; docs/add-a-strategy.md writes one.

#include <memory>
#include <span>
#include <string>

#include "bonfire/comm/same_settings.h"
#include "bonfire/graph/step_context.h"
#include "bonfire/optim/optimizer.h"
#include "bonfire/parallel/strategy.h"

namespace bonfire::fleet {

struct Job;

// What a strategy keeps while it counts: hooks in the step context, numbers. It ends with the job, or when a strategy
// of its kind takes its place.
class StrategyPart {
 public:
  virtual ~StrategyPart() = default;
  virtual std::string state() const { return {}; }  // JSON, for checkpoints; empty: none
  virtual void resume(const std::string& /*state*/) {}
};

// What a strategy is applied to.
struct Applied {
  Job& job;
  const optim::Optimizer& optimizer;
  const DistributedStrategy& strategy;
  StepContext& context;
};

struct StrategyKind {
  const char* name;  // of its state in checkpoints
  // ConfigError for options that are out of range, or have no effect beside the others.
  void (*check)(const DistributedStrategy& strategy) = nullptr;
  // Before a device is used: what devices are made with.
  void (*prepare)(const DistributedStrategy& strategy) = nullptr;
  // On each rank by itself, also where there is only one. `kept` is what an earlier strategy has left: an option that
  // is not chosen leaves it.
  void (*apply)(const Applied& to, std::unique_ptr<StrategyPart>& kept) = nullptr;
  // What must be the same on all ranks, after all are applied.
  void (*compare)(const Applied& to, comm::Settings& settings) = nullptr;
  // A collective call, once ranks have agreed; only where the data axis has several.
  void (*meet)(const Applied& to) = nullptr;
};

std::span<const StrategyKind* const> strategy_kinds();  // in the order in which they are applied

std::string print(bool value);
std::string print(int64_t value);
void require_at_least_one(const char* option, int64_t value);  // ConfigError
// ConfigError where an option other than its default only counts where another one asks for it.
void require_effect(const char* option, bool given, bool counts, const char* needs);

}  // namespace bonfire::fleet
