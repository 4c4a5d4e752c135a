#include "bonfire/parallel/job.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "bonfire/backend/cpu/device/threads.h"
#include "bonfire/base/error.h"
#include "bonfire/base/log.h"
#include "bonfire/comm/agreement.h"
#include "bonfire/comm/group_backend.h"
#include "bonfire/comm/hierarchical_group.h"
#include "bonfire/comm/joined.h"
#include "bonfire/comm/shm/shm_group.h"
#include "bonfire/graph/engine.h"
#include "bonfire/parallel/all_devices.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/passes/pass.h"
#include "bonfire/runtime/tuning.h"

namespace bonfire::fleet {

Job::~Job() { steps->give_up_messages(std::chrono::milliseconds(0)); }

Job* job() { return static_cast<Job*>(StepContext::current().job.get()); }  // there is no other kind

Job& joined(const char* what) {
  if (!job()) throw_error<ConfigError>("[fleet] {} comes before fleet::init()", what);
  return *job();
}

namespace {

std::chrono::milliseconds timeout_of(const Options& options) {
  return std::chrono::milliseconds(static_cast<int64_t>(1000 * options.collective_timeout));
}

std::shared_ptr<comm::Group> group_of(const comm::Rendezvous& rendezvous, const Options& options) {
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
  return comm::make_group(options.backend, {membership, own->address, one_host});
}

}  // namespace

std::shared_ptr<comm::Group> group_by_hosts(Job& self) {
  if (self.by_hosts) return self.by_hosts;
  if (self.rendezvous.store == nullptr)
    throw_error<ConfigError>(
        "[fleet] use_hierarchical_allreduce must know which ranks share a host: join the job by fleet::init()");
  if (self.along(Axis::data) != self.group)
    throw_error<ConfigError>("[fleet] use_hierarchical_allreduce goes with data parallel alone, and this job is {}",
                             to_string(mesh()));
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

// A step that fails here would leave the peers waiting for its gradients: all groups end, with the reason. The
// program's first: who hears of it in a step may go on there.
void watch_steps(Job& self) {
  std::vector<std::shared_ptr<comm::Group>> groups{self.group};
  for (const auto& axis : self.axes)
    if (axis && axis != self.group) groups.push_back(axis);
  auto end = [groups = std::move(groups), steps = self.steps, timing = self.timing](const std::string& why) {
    if (timing) timing->end(why);
    for (const auto& group : groups) group->abort(why);
    steps->abort(why);
  };
  self.watch = StepContext::current().after_failure.add(end);
  if (self.heartbeat) self.heartbeat->on_loss(end);
}

void init(int argc, char** argv, const Options& options) {
  if (!options.is_collective)
    throw_error<ConfigError>("[fleet] is_collective = false asks for parameter servers, which are not built yet");
  comm::Environment self = comm::read_environment({argv, argv + argc});
  if (self.world > 1) base::set_log_rank(self.rank);
  comm::Rendezvous rendezvous =
      comm::meet(self, {.settings = {{"backend", options.backend},
                                     {"collective_timeout", fmt::format("{}", options.collective_timeout)},
                                     {"mesh", to_string(options.mesh)}}});
  bool chosen = std::getenv("BONFIRE_CPU_THREADS") != nullptr;  // by bonfire launch, or by the user
  if (!chosen && rendezvous.environment.local_world > 1) cpu::set_cpu_threads(rendezvous.environment.threads());
  if (rendezvous.store == nullptr) {
    const std::string hint = hint_to_use_all(bonfire::default_device(), devices(), command_words());
    if (self.starter == comm::Starter::nobody && !hint.empty()) base::log_info("[fleet] {}", hint);
    return join(nullptr, options.mesh);
  }
  static std::atomic<bool> joined_before{false};
  if (joined_before.exchange(true))
    throw_error<ConfigError>("[fleet] init() was called before; a process joins its job once");
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // into a pipe: a rank that is killed has said what it has printed
  auto heartbeat = std::make_unique<comm::Heartbeat>(rendezvous);
  std::shared_ptr<comm::Group> group = group_of(rendezvous, options);
  auto timing = runtime::share_timing(*group, rendezvous.store, timeout_of(options));
  join(std::move(group), options.mesh);
  job()->timing = std::move(timing);
  heartbeat->show(job()->group->progress());
  job()->rendezvous = std::move(rendezvous);
  job()->timeout = timeout_of(options);
  job()->heartbeat = std::move(heartbeat);
  base::log_debug("[fleet] rank {} of {}, backend {}", rank(), world_size(), options.backend);
  if (world_size() > 1) watch_steps(*job());
}

void init(const Options& options) { init(0, nullptr, options); }

namespace {

void stand_along_axes(Job& self, const Mesh& mesh) {
  self.axes = {};
  self.steps = std::make_shared<comm::AxisGroups>();
  for (int i = 0; i < kAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    std::shared_ptr<comm::Group>& along = self.axes[static_cast<size_t>(i)];
    if (mesh.size(axis) == mesh.world())
      along = self.group;
    else if (mesh.size(axis) > 1)
      along = self.group->split(mesh.first_along(axis));
  }
  self.reducing = self.along(Axis::data);
  for (int i = 0; i < kAxes; ++i)
    if (const auto& along = self.axes[static_cast<size_t>(i)])
      self.steps->change(static_cast<Axis>(i), {.communicators = {along->split(0)}});
  StepContext& context = StepContext::current();
  context.groups = self.steps;
  context.mesh = mesh;
  context.random.rank = static_cast<uint64_t>(mesh.place(Axis::data));
  context.random.world = static_cast<uint64_t>(mesh.size(Axis::data));
  watch_steps(self);
}

}  // namespace

void join(std::shared_ptr<comm::Group> group, const MeshSizes& sizes) {
  leave();
  comm::note_joined();
  const bool alone = group == nullptr || group->size() == 1;
  const Mesh mesh = alone ? Mesh::of(0, 1, sizes) : Mesh::of(group->rank(), group->size(), sizes);
  auto made = std::make_unique<Job>();
  made->group = std::move(group);
  StepContext& context = StepContext::current();
  Job& self = *made;
  context.job = std::move(made);
  if (alone) return;
  stand_along_axes(self, mesh);
  self.hooks.push_back(context.after_backward.add(reduce_gradients));
  self.hooks.push_back(context.update_conditions.add(used_anywhere));
}

void arrange(const MeshSizes& sizes) {
  const Mesh other = Mesh::of(rank(), world_size(), sizes);  // says so where it asks for more
  if (other == mesh()) return;
  Job& self = joined("arrange");
  if (!self.parameters.empty() || !self.optimizers.empty())
    throw_error<ConfigError>("[fleet] arrange() comes before distributed_model and distributed_optimizer");
  synchronize();
  stand_along_axes(self, other);
}

void leave() {
  if (!job()) return;
  synchronize();
  StepContext& context = StepContext::current();
  context.random.rank = 0;
  context.random.world = 1;
  const std::unique_ptr<StepJob> ending = std::move(context.job);
  context.groups = nullptr;
  auto& self = static_cast<Job&>(*ending);
  self.hooks.clear();
  self.watch = {};
  self.parts.clear();
  if (context.mesh.world() == 1) return;
  context.mesh = {};
  self.steps->begin_leaving();
  // A peer may still be reading. In the groups of the steps: one that still waits for a gradient learns that none will
  // come.
  for (int i = 0; i < kAxes; ++i)
    if (self.axes[static_cast<size_t>(i)])
      comm::agree(self.steps->along(static_cast<Axis>(i))->group(), {{{0, "end of the job"}}});
  constexpr std::chrono::seconds kUnderWay{1};  // what has been received by now is only to be acknowledged
  if (const int left = self.steps->give_up_messages(kUnderWay); left > 0)
    throw_error<CommError>("[fleet] the job was left with {} messages of this rank that nobody had received", left);
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

comm::Group& group(Axis axis) {
  Job& self = joined("fleet::group()");
  if (!self.along(axis))
    throw_error<ConfigError>("[fleet] this rank is the only one along the {} axis ({}): it has no group there",
                             name_of(axis), to_string(mesh()));
  return *self.along(axis);
}

const Mesh& mesh() { return StepContext::current().mesh; }

}  // namespace bonfire::fleet
