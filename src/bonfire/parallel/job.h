#pragma once
// Job: what a rank knows of the job that it is part of. Inside parallel/ only; programs see fleet.h.
//
//   job.cpp                 joining, leaving, who is there, what happens when a step fails
//   gradient_reduction.cpp  what backward passes and optimizers do between ranks
//   gradient_memory.cpp     where the gradients lie while they are reduced
//   strategies/             what options do, a file for each kind
//   fleet.cpp               what distributed_model and distributed_optimizer set up

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bonfire/comm/axis_groups.h"
#include "bonfire/comm/heartbeat.h"
#include "bonfire/comm/rendezvous.h"
#include "bonfire/graph/step_context.h"
#include "bonfire/optim/optimizer.h"
#include "bonfire/parallel/gradients.h"
#include "bonfire/parallel/strategies/kind.h"
#include "bonfire/runtime/timing_peers.h"

namespace bonfire::fleet {

struct DistributedParameter {
  Variable variable;
  int64_t name;  // its number in the names of Job::steps
};

// What a rank knows of its job. A rank is a thread: in-process data parallel has several of them.
struct Job : StepJob {
  comm::Rendezvous rendezvous;  // keeps the store while the job lives
  std::chrono::milliseconds timeout{};
  std::shared_ptr<comm::Group> group;  // the program's own, and what is agreed on between steps
  // [axis]: of the ranks that differ along it alone; where those are all of them `group` itself, null where it is one.
  std::array<std::shared_ptr<comm::Group>, kAxes> axes = {};
  std::shared_ptr<comm::AxisGroups> steps = std::make_shared<comm::AxisGroups>();  // the groups of its steps
  std::map<const VariableState*, DistributedParameter> parameters;
  std::vector<ModelGradients> models;
  std::vector<std::vector<Variable>> optimizers;    // the parameters of each
  std::shared_ptr<comm::Group> by_hosts = nullptr;  // once use_hierarchical_allreduce has asked for it
  std::shared_ptr<comm::Group> reducing = nullptr;  // what the steps' communicators along data are split from
  std::vector<Device> devices = {};  // that gradients are reduced on; each but the first has communicators of its own
  StepState<uint64_t> traced_anew;   // rises with models and strategy: steps that were traced before are others
  std::map<const StrategyKind*, std::unique_ptr<StrategyPart>> parts = {};  // of the strategies that count
  std::unique_ptr<comm::Heartbeat> heartbeat = nullptr;                     // of a process that is a rank
  std::shared_ptr<runtime::TimingPeers> timing = nullptr;

  std::vector<Hook> hooks = {};  // of the thread's steps
  Hook watch = {};               // of their failures

  Job() = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() override;  // gives up messages that nobody has received

  // Whether there are other ranks with other samples.
  bool has_replicas() const { return along(Axis::data) != nullptr; }

  // Null: it has none.
  template <class Part>
  Part* part(const StrategyKind& kind) const {
    auto found = parts.find(&kind);
    return found == parts.end() ? nullptr : static_cast<Part*>(found->second.get());
  }
  const std::shared_ptr<comm::Group>& along(Axis axis) const { return axes[static_cast<size_t>(axis)]; }
};

Job* job();                     // of this thread's step context; null: it has joined none
Job& joined(const char* what);  // ConfigError where there is none: `what` comes before fleet::init()
void watch_steps(Job& self);    // a step that fails here ends those of the peers
// The job's ranks by hosts; on one host there is nothing to gain.
std::shared_ptr<comm::Group> group_by_hosts(Job& self);

// gradient_reduction.cpp
void reduce_gradients(std::span<const Variable> written);  // after each backward pass
Tensor used_anywhere(const Variable& parameter);           // an optimizer's condition
void average_parameters(const Job& self);                  // all become their mean over the ranks
void average_over_ranks(std::span<const Variable> some);

// gradient_memory.cpp
void lay_out_gradients(const Job& self, const std::vector<Variable>& parameters);  // of an optimizer. A collective call
void lay_out_gradients_of(const Job& self, const std::vector<Variable>& some);
void add_device(Job& self, Device device);  // of parameters. A collective call
void widen_data_axis(Job& self, const std::shared_ptr<comm::Group>& reducing, int64_t communicators);

}  // namespace bonfire::fleet
