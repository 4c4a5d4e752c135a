#include "bonfire/parallel/fleet.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>

#include "bonfire/autodiff/backward.h"
#include "bonfire/backend/cpu/threads.h"
#include "bonfire/base/error.h"
#include "bonfire/comm/agreement.h"
#include "bonfire/comm/all_reduce.h"
#include "bonfire/comm/gloo/gloo_group.h"
#include "bonfire/comm/heartbeat.h"
#include "bonfire/comm/hierarchical_group.h"
#include "bonfire/comm/joined.h"
#include "bonfire/comm/mpi/mpi_group.h"
#include "bonfire/comm/rendezvous.h"
#include "bonfire/comm/shm/shm_group.h"
#include "bonfire/graph/engine.h"
#include "bonfire/graph/step_state.h"
#include "bonfire/parallel/all_devices.h"
#include "bonfire/parallel/compared.h"
#include "bonfire/parallel/gradients.h"
#include "bonfire/parallel/local_sgd.h"
#include "bonfire/passes/pass.h"
#include "bonfire/runtime/plan_cache.h"
#include "bonfire/runtime/timing_peers.h"
#include "bonfire/runtime/tuning.h"

namespace bonfire::fleet {
namespace {

struct DistributedParameter {
  Variable variable;
  int64_t name;  // its place in Job::names
};

// What strategies have changed in the options of this thread's steps.
class OptionChanges {
 public:
  // Only what the strategy chooses.
  void make(passes::Options& options, const DistributedStrategy& strategy) {
    set(options, &passes::Options::use_amp, strategy.use_amp);
    set(options, &passes::Options::fuse_bn_act_ops, strategy.fuse_bn_act_ops);
    set(options, &passes::Options::fuse_elewise_add_act_ops, strategy.fuse_elewise_add_act_ops);
    set(options, &passes::Options::fast_math, strategy.fast_math);
    set(options, &passes::Options::fuse_all_reduce_ops, strategy.fuse_all_reduce_ops);
    set(options, &passes::Options::all_reduce_layers, strategy.fuse_parameter_groups_size);
    set(options, &passes::Options::communicators, strategy.nccl_comm_num);
    if (strategy.fuse_parameter_memory_size)
      set(options, &passes::Options::all_reduce_bytes,
          Choice(static_cast<int64_t>(*strategy.fuse_parameter_memory_size * 1048576)));
  }

  // But for what the program has changed since.
  void undo(passes::Options& options) {
    for (auto change = changes_.rbegin(); change != changes_.rend(); ++change) (*change)(options);
    changes_.clear();
  }

 private:
  template <class T>
  void set(passes::Options& options, T passes::Options::*option, const Choice<T>& choice) {
    if (!choice.chosen) return;
    changes_.push_back([option, made = choice.value, before = options.*option](passes::Options& now) {
      if (now.*option == made) now.*option = before;
    });
    options.*option = choice.value;
  }

  std::vector<std::function<void(passes::Options&)>> changes_;
};

// What a rank knows of its job. A rank is a thread: in-process data parallel has several of them.
struct Job {
  comm::Rendezvous rendezvous;  // keeps the store while the job lives
  std::chrono::milliseconds timeout{};
  std::shared_ptr<comm::Group> group;  // the program's own, and what is agreed on between steps
  int channel = -1;                    // of the all-reduces of gradients
  std::map<const VariableState*, DistributedParameter> parameters;
  std::shared_ptr<std::vector<std::string>> names = std::make_shared<std::vector<std::string>>();
  std::vector<ModelGradients> models;
  std::vector<std::vector<Variable>> optimizers;    // the parameters of each
  std::shared_ptr<comm::Group> by_hosts = nullptr;  // once use_hierarchical_allreduce has asked for it
  std::shared_ptr<comm::Group> reducing = nullptr;  // what the channel's communicators are split from
  std::optional<LocalSgd> local = {};
  StepState<uint64_t> traced_anew;  // rises with models and strategy: steps that were traced before are others
  OptionChanges changes = {};
  int64_t fetch_frequency = 1, fetches_asked = 0;        // steps
  std::unique_ptr<comm::Heartbeat> heartbeat = nullptr;  // of a process that is a rank
  std::shared_ptr<runtime::TimingPeers> timing = nullptr;

  Job() = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() {
    if (channel >= 0) comm::close_channel(channel);
  }
};

// How many WithoutReduction live in this thread.
StepState<int>& without_reduction() {
  thread_local StepState<int> count;
  return count;
}

std::unique_ptr<Job>& job() {
  thread_local std::unique_ptr<Job> instance;
  return instance;
}

Job& joined(const char* what) {
  if (!job()) throw_error<ConfigError>("[fleet] {} comes before fleet::init()", what);
  return *job();
}

std::chrono::milliseconds timeout_of(const Options& options) {
  return std::chrono::milliseconds(static_cast<int64_t>(1000 * options.collective_timeout));
}

std::shared_ptr<comm::Group> make_group(const comm::Rendezvous& rendezvous, const Options& options) {
  const comm::Environment& self = rendezvous.environment;
  comm::Membership membership{.rank = self.rank,
                              .size = self.world,
                              .store = rendezvous.store,
                              .name = "fleet",
                              .timeout = timeout_of(options)};
  auto own = std::find_if(rendezvous.peers.begin(), rendezvous.peers.end(),
                          [&](const comm::Peer& peer) { return peer.rank == self.rank; });
  BONFIRE_CHECK(own != rendezvous.peers.end());
  bool one_host = std::all_of(rendezvous.peers.begin(), rendezvous.peers.end(),
                              [&](const comm::Peer& peer) { return peer.machine == own->machine; });
  std::string backend = options.backend == "auto" ? (one_host ? "shm" : "gloo") : options.backend;
  if (backend == "shm") {
    if (!one_host)
      throw_error<ConfigError>("[fleet] backend shm is for ranks of one host; use gloo or mpi across hosts");
    return comm::shm_group(membership);
  }
  if (backend == "gloo") return comm::gloo_group(membership, {.address = own->address});
  if (backend == "mpi") return comm::mpi_group({.timeout = membership.timeout, .store = rendezvous.store});
  throw_error<ConfigError>("[fleet] there is no backend '{}'; there are auto, shm, gloo and mpi", backend);
}

// The job's ranks by hosts; on one host there is nothing to gain.
std::shared_ptr<comm::Group> group_by_hosts(Job& self) {
  if (self.by_hosts) return self.by_hosts;
  if (self.rendezvous.store == nullptr)
    throw_error<ConfigError>(
        "[fleet] use_hierarchical_allreduce must know which ranks share a host: join the job by fleet::init()");
  const std::vector<comm::Peer>& peers = self.rendezvous.peers;
  const std::string& machine = peers.at(static_cast<size_t>(self.group->rank())).machine;
  std::vector<int> here;
  for (const comm::Peer& peer : peers)
    if (peer.machine == machine) here.push_back(peer.rank);
  if (here.size() == peers.size()) return self.group;
  auto own = std::find(here.begin(), here.end(), self.group->rank());
  return self.by_hosts = comm::hierarchical_group(
             self.group, comm::shm_group({.rank = static_cast<int>(own - here.begin()),
                                          .size = static_cast<int>(here.size()),
                                          .store = self.rendezvous.store,
                                          .name = fmt::format("fleet/host of rank {}", here[0]),
                                          .timeout = self.timeout}));
}

// Puts the gradients of an optimizer into memory where they are reduced without being copied, in the order in which
// they are. A collective call.
void lay_out_gradients(const Job& self, const std::vector<Variable>& parameters) {
  std::set<const VariableState*> left;
  for (const Variable& parameter : parameters) left.insert(&parameter.state());
  std::vector<Variable> gradients;
  for (const ModelGradients& model : self.models) {
    const std::vector<Variable> in_order = model.in_order();
    for (size_t i = 0; i < in_order.size(); ++i) {
      if (left.erase(&in_order[i].state()) == 0) continue;
      if (i == 0) gradients.push_back(model.uses());  // reduced with the first of them
      gradients.push_back(in_order[i].grad_variable());
    }
  }
  for (size_t i = parameters.size(); i-- > 0;)  // of no model yet
    if (left.contains(&parameters[i].state())) gradients.push_back(parameters[i].grad_variable());
  const size_t bytes = contiguous_bytes(gradients);
  comm::Buffer memory = self.reducing->buffer(bytes);
  make_contiguous(gradients, std::make_shared<Storage>(gradients[0].device(), bytes, memory));
  comm::Channel channel = comm::channel_at(self.channel);
  comm::change_channel(self.channel, {});  // so that what nobody needs has one owner
  std::erase_if(channel.memories, [](const comm::Channel::Memory& old) { return old.buffer.use_count() == 1; });
  channel.memories.push_back({std::move(memory), bytes});
  comm::change_channel(self.channel, std::move(channel));
}

// Those of all optimizers that have one of these parameters.
void lay_out_gradients_of(const Job& self, const std::vector<Variable>& some) {
  for (const std::vector<Variable>& parameters : self.optimizers)
    if (std::find_first_of(parameters.begin(), parameters.end(), some.begin(), some.end()) != parameters.end())
      lay_out_gradients(self, parameters);
}

// The order of rank 0's first backward pass becomes everyone's. Nothing else may use the channel meanwhile.
void settle_order(Job& self, size_t number, std::span<const Variable> written) {
  ModelGradients& model = self.models[number];
  engine().synchronize();
  comm::Group& group = comm::channel_at(self.channel).group();
  comm::agree(group, {{{0, fmt::format("order of the gradients of model {}", number + 1)}}});
  std::vector<int64_t> order = model.order_of(written);
  group.broadcast({order.data(), order.size(), DType::i64}, 0);
  const std::vector<Variable> before = model.in_order();
  model.set_order(std::move(order));
  if (model.in_order() != before) lay_out_gradients_of(self, before);
}

// What a backward pass calls: see ModelGradients.
void reduce_gradients(std::span<const Variable> written) {
  Job& self = *job();
  NoGrad no_grad;
  std::set<const VariableState*> states;
  for (const Variable& parameter : written) states.insert(&parameter.state());
  self.traced_anew.get();
  bool later = without_reduction() > 0 || (self.local && self.local->local());
  for (size_t i = 0; i < self.models.size(); ++i) {
    if (!self.models[i].note(states) || later) continue;
    if (!self.models[i].has_order()) settle_order(self, i, written);
    self.models[i].reduce(self.channel);
  }
}

// The optimizer's condition: undefined where this rank has used the parameter.
Tensor used_anywhere(const Variable& parameter) {
  if (!job()) return {};
  for (const ModelGradients& model : job()->models)
    if (Tensor used = model.used_anywhere(parameter); used.defined()) return used;
  return {};
}

// A step that fails here would leave the peers waiting for its gradients: all groups end, with the reason. The
// program's first: who hears of it in a step may go on there.
void watch_steps(const Job& self) {
  auto end = [program = self.group, steps = comm::channel_at(self.channel).communicators,
              timing = self.timing](const std::string& why) {
    if (timing) timing->end(why);
    program->abort(why);
    for (const auto& group : steps) group->abort(why);
  };
  set_step_failure(std::make_shared<const StepFailure>(end));
  if (self.heartbeat) self.heartbeat->on_loss(end);
}

// All parameters become their mean over the ranks. In the order of their names, which is the same everywhere.
void average_parameters(const Job& self) {
  NoGrad no_grad;
  std::map<int64_t, Variable> in_order;
  for (const auto& [state, parameter] : self.parameters) in_order.emplace(parameter.name, parameter.variable);
  for (const auto& [name, variable] : in_order)
    variable.assign(comm::all_reduce(variable.value(), comm::Reduce::mean, self.channel, name));
}

void after_update(const optim::Optimizer& optimizer) {
  if (!job() || !job()->local) return;
  if (Trace::current().compiling)
    throw_error<ConfigError>(
        "[fleet] use_local_sgd counts steps, and compile() traces a step once only; call the step without compile()");
  if (job()->local->ends_with_average(optimizer.lr())) average_parameters(*job());
}

void require_one_device(std::span<const Variable> variables) {
  for (const Variable& variable : variables)
    if (!(variable.device() == variables[0].device()))
      throw_error<ConfigError>("[fleet] parameter {} is on {} and {} on {}; a rank has one device", variables[0].name(),
                               to_string(variables[0].device()), variable.name(), to_string(variable.device()));
}

// What is not built yet is refused, not ignored.
void require_built(const DistributedStrategy& strategy) {
  check_strategy(strategy);
  const DistributedStrategy usual;
  auto require = [](bool built, const char* option) {
    if (!built) throw_error<ConfigError>("[fleet] {} is not built yet: leave it at its default", option);
  };
  require(strategy.accumulate_steps == 1, "accumulate_steps");
  require(strategy.num_threads == usual.num_threads && !strategy.cpu_threads, "num_threads or cpu_threads");
}

// Communicators are only added, unless ranks are now reduced by hosts: the nodes and plans of earlier optimizers stay
// good.
void widen_channel(Job& self, const std::shared_ptr<comm::Group>& reducing, int64_t communicators) {
  engine().synchronize();
  comm::Channel channel = comm::channel_at(self.channel);
  if (reducing != self.reducing) channel.communicators.clear();
  self.reducing = reducing;
  while (static_cast<int64_t>(channel.communicators.size()) < communicators)
    channel.communicators.push_back(reducing->split(0));
  comm::change_channel(self.channel, std::move(channel));
}

void broadcast(comm::Group& group, const Variable& variable) {
  std::vector<std::byte> bytes = variable.save();
  group.broadcast({bytes.data(), bytes.size(), DType::u8}, 0);
  if (group.rank() != 0) variable.load(bytes);
}

}  // namespace

void init(int argc, char** argv, const Options& options) {
  if (!options.is_collective)
    throw_error<ConfigError>("[fleet] is_collective = false asks for parameter servers, which are not built yet");
  comm::Environment self = comm::read_environment({argv, argv + argc});
  comm::Rendezvous rendezvous =
      comm::meet(self, {.settings = {{"backend", options.backend},
                                     {"collective_timeout", fmt::format("{}", options.collective_timeout)}}});
  bool chosen = std::getenv("BONFIRE_CPU_THREADS") != nullptr;  // by bonfire launch, or by the user
  if (!chosen && rendezvous.environment.local_world > 1) cpu::set_cpu_threads(rendezvous.environment.threads());
  if (rendezvous.store == nullptr) {
    const std::string hint = hint_to_use_all(bonfire::default_device(), devices(), command_words());
    if (self.starter == comm::Starter::nobody && !hint.empty()) std::fprintf(stderr, "[fleet] %s\n", hint.c_str());
    return join(nullptr);
  }
  static std::atomic<bool> joined_before{false};
  if (joined_before.exchange(true))
    throw_error<ConfigError>("[fleet] init() was called before; a process joins its job once");
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // into a pipe: a rank that is killed has said what it has printed
  auto heartbeat = std::make_unique<comm::Heartbeat>(rendezvous);
  std::shared_ptr<comm::Group> group = make_group(rendezvous, options);
  auto timing = runtime::share_timing(*group, rendezvous.store, timeout_of(options));
  join(std::move(group));
  job()->timing = std::move(timing);
  heartbeat->show(job()->group->progress());
  job()->rendezvous = std::move(rendezvous);
  job()->timeout = timeout_of(options);
  job()->heartbeat = std::move(heartbeat);
  if (job()->channel >= 0) watch_steps(*job());
}

void init(const Options& options) { init(0, nullptr, options); }

void join(std::shared_ptr<comm::Group> group) {
  leave();
  comm::note_joined();
  auto made = std::make_unique<Job>();
  made->group = std::move(group);
  bool several = made->group != nullptr && made->group->size() > 1;
  if (several) made->channel = comm::open_channel({.communicators = {made->group->split(0)}, .names = made->names});
  made->reducing = made->group;
  job() = std::move(made);
  if (!several) return;
  random_state().rank = static_cast<uint64_t>(rank());
  random_state().world = static_cast<uint64_t>(world_size());
  autodiff::set_after_backward(reduce_gradients);
  watch_steps(*job());
}

void leave() {
  if (!job()) return;
  synchronize();
  autodiff::set_after_backward({});
  passes::current_options().sync_batch_norm = -1;
  set_step_failure(nullptr);
  random_state().rank = 0;
  random_state().world = 1;
  std::unique_ptr<Job> self = std::move(job());
  self->changes.undo(passes::current_options());
  // A peer may still be reading. In the channel: one that still waits for a gradient learns that none will come.
  if (self->channel >= 0) comm::agree(comm::channel_at(self->channel).group(), {{{0, "end of the job"}}});
}

int rank() { return job() && job()->group ? job()->group->rank() : 0; }
int world_size() { return job() && job()->group ? job()->group->size() : 1; }

Device default_device() {
  Device device = bonfire::default_device();
  if (device.type == DeviceType::cpu || !job()) return device;
  const auto gpus = static_cast<int>(devices().size()) - 1;
  device.index = static_cast<int16_t>(job()->rendezvous.environment.local_rank % gpus);
  return device;
}

comm::Group& group() {
  Job& self = joined("fleet::group()");
  if (!self.group) throw_error<ConfigError>("[fleet] this process is alone: it has no group; see docs/launch.md");
  return *self.group;
}

void set_epoch(int64_t epoch) {
  if (job() && job()->local) job()->local->begin_epoch(epoch);
}

bool averaged() { return !job() || !job()->local || job()->local->averaged(); }

void average(std::span<const Variable> more) {
  if (world_size() == 1) return;
  average_parameters(*job());
  NoGrad no_grad;
  for (const Variable& variable : more)
    variable.assign(comm::all_reduce(variable.value(), comm::Reduce::mean, job()->channel));
  commit();
  if (job()->local) job()->local->note_average();
}

bool fetch_due() { return !job() || job()->fetches_asked++ % job()->fetch_frequency == 0; }

WithoutReduction::WithoutReduction() { without_reduction() = without_reduction() + 1; }
WithoutReduction::~WithoutReduction() { without_reduction() = without_reduction() - 1; }

StandIns::StandIns(bool are) : before_(std::exchange(passes::current_options().stand_ins, are)) {}
StandIns::~StandIns() { passes::current_options().stand_ins = before_; }

namespace detail {

void distribute_model(const nn::Module& model) {
  Job& self = joined("distributed_model");
  if (self.channel < 0) return;
  std::vector<Variable> parameters;
  for (const Parameter& parameter : model.parameters()) parameters.push_back(parameter);
  require_one_device(parameters);
  nn::StateDict variables = model.state_dict();
  comm::require_same(*self.group, "distributed_model", compared_of(model));
  for (const auto& [name, variable] : variables) broadcast(*self.group, variable);
  std::vector<int64_t> names;
  auto add_name = [&, number = self.models.size() + 1](const std::string& name) {
    self.names->push_back(number == 1 ? name : fmt::format("{} of model {}", name, number));
    return static_cast<int64_t>(self.names->size()) - 1;
  };
  std::erase_if(parameters, [&](const Variable& one) { return self.parameters.contains(&one.state()); });
  for (const Variable& parameter : parameters) {
    names.push_back(add_name(parameter.name()));
    self.parameters.emplace(&parameter.state(), DistributedParameter{parameter, names.back()});
  }
  if (parameters.empty()) return;
  self.traced_anew = self.traced_anew + 1;
  self.models.emplace_back(parameters, std::move(names), add_name("uses of parameters"));
  lay_out_gradients_of(self, parameters);
}

void distribute_optimizer(const optim::Optimizer& optimizer, const DistributedStrategy& strategy) {
  Job& self = joined("distributed_optimizer");
  require_built(strategy);
  passes::Options& options = passes::current_options();
  self.changes.make(options, strategy);
  if (strategy.num_iteration_per_drop_scope.chosen)
    runtime::set_release_frequency(strategy.num_iteration_per_drop_scope);
  if (strategy.fetch_frequency.chosen) self.fetch_frequency = strategy.fetch_frequency;
  self.fetches_asked = 0;
  std::optional<LocalSgd> local;
  if (strategy.use_local_sgd) local.emplace(strategy, optimizer.lr());
  if (self.channel < 0) return;
  if (strategy.use_local_sgd.chosen) self.local = std::move(local);
  comm::require_same(*self.group, "distributed_optimizer", compared_of(optimizer, strategy, options));
  self.traced_anew = self.traced_anew + 1;
  optim::Optimizer shared = optimizer;  // copies share everything
  shared.set_after_update(after_update);
  shared.set_condition(used_anywhere);
  require_one_device(optimizer.parameters());
  std::shared_ptr<comm::Group> reducing = self.reducing;
  if (strategy.use_hierarchical_allreduce.chosen)
    reducing = strategy.use_hierarchical_allreduce ? group_by_hosts(self) : self.group;
  widen_channel(self, reducing, options.communicators);
  const std::vector<Variable>& parameters = optimizer.parameters();
  std::erase_if(self.optimizers, [&](const std::vector<Variable>& old) {  // of an optimizer that this one replaces
    return std::find_first_of(old.begin(), old.end(), parameters.begin(), parameters.end()) != old.end();
  });
  self.optimizers.push_back(parameters);
  lay_out_gradients(self, parameters);
  if (strategy.sync_batch_norm.chosen) options.sync_batch_norm = strategy.sync_batch_norm ? self.channel : -1;
  watch_steps(self);
}

}  // namespace detail
}  // namespace bonfire::fleet
