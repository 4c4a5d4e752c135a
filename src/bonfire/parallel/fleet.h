#pragma once
// fleet: the same program on one device, on all devices of a host and on many hosts.
//
//   fleet::init(argc, argv);                                     // who this process is: docs/launch.md
//   auto model = fleet::distributed_model(models::mnist_cnn());  // everyone begins with rank 0's weights
//   auto optimizer = fleet::distributed_optimizer(optim::Momentum(model.parameters(), {.lr = 0.1}));
//   ...
//   loss.backward();      // gradients become their mean over the ranks, while the rest of the pass still runs
//   optimizer.step();
//
// A process that nobody started as a rank is rank 0 of 1, and nothing is communicated. Both wrappers may be called in
// either order; each returns what it was given.

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "bonfire/comm/group.h"
#include "bonfire/graph/mesh.h"
#include "bonfire/nn/module.h"
#include "bonfire/optim/optimizer.h"
#include "bonfire/parallel/strategy.h"

namespace bonfire::fleet {

struct Options {
  bool is_collective = true;        // false: parameter servers, which are not built yet
  std::string backend = "auto";     // auto, shm (one host), gloo, mpi
  double collective_timeout = 300;  // seconds
  MeshSizes mesh = {};              // {.tensor = 2}: every two ranks share a model's layers
};

// A collective call of all ranks. ConfigError for an environment or option that cannot be, CommError and TimeoutError
// name ranks that cannot be reached or never came.
void init(int argc, char** argv, const Options& options = {});
void init(const Options& options = {});
// For groups made by hand, and for threads that are ranks: each of those needs a device of its own (cpu:0, cpu:1).
void join(std::shared_ptr<comm::Group> group, const MeshSizes& sizes = {});
// A collective call: the ranks of the job stand otherwise from now on. Before distributed_model.
void arrange(const MeshSizes& sizes);
// A collective call: this thread is rank 0 of 1 again. Waits for what is running.
void leave();

int rank();
int world_size();
Device default_device();  // of this host's GPUs the one whose turn it is among the ranks here, else cpu:0
comm::Group& group();     // for collectives of the program's own, between steps

// The ranks arranged by what they share (graph/mesh.h). Gradients are averaged, replicas compared and samples dealt out
// along the data axis; with nothing said, that is all ranks.
const Mesh& mesh();
comm::Group& group(Axis axis);  // of the ranks that differ along it alone; ConfigError where there is no other

// Local SGD (use_local_sgd). Epochs before local_sgd_is_warm_steps are synchronous, so somebody must tell which one
// this is. average() is a collective call that does at once what comes every local_sgd_steps steps; before a
// checkpoint, an evaluation and at the end all ranks should be averaged().
void set_epoch(int64_t epoch);
bool averaged();
void average(std::span<const Variable> more = {});  // besides the parameters

// What the job's strategies have counted, as JSON, for a program's own checkpoints. The same on all ranks, once they
// are averaged().
std::string strategy_state();
void resume_strategies(const std::string& state);  // after distributed_optimizer

// Whether the values of this step should come back to the host (fetch_frequency): true at the first step and at every
// so many after it. To be asked once a step: if (fleet::fetch_due()) print(loss.item());
bool fetch_due();

// While one lives, backward() only adds to this rank's gradients: what comes before an update's last backward(), which
// reduces the sum.
class WithoutReduction {
 public:
  WithoutReduction();
  ~WithoutReduction();
  WithoutReduction(const WithoutReduction&) = delete;
  WithoutReduction& operator=(const WithoutReduction&) = delete;
};

// While one lives, the batches of this rank's steps are stand-ins (data/sampler.h): with sync_batch_norm they count for
// nothing in the statistics of all ranks. Their loss must weigh nothing.
class StandIns {
 public:
  explicit StandIns(bool are = true);
  ~StandIns();
  StandIns(const StandIns&) = delete;
  StandIns& operator=(const StandIns&) = delete;

 private:
  bool before_;
};

// What a strategy asks of devices (num_threads, cpu_threads), before one of them is used: distributed_optimizer, which
// needs a model, may come too late for it. ConfigError for options that cannot be, and for a device that is in use.
void prepare_devices(const DistributedStrategy& strategy);
struct ModelOptions {
  // What ranks along the tensor axis share out: {{"*.query.weight", 0}, …}; empty: as the model's own plan says.
  std::vector<nn::Split> split = {};
};

// Of what distributed_model does only this: each rank along the tensor axis keeps its part of what is split. For a
// model that a pipeline::Pipeline is going to train, which does the rest. A collective call, before an optimizer is
// made of the model's parameters; it makes no values. ConfigError where ranks along the axis would begin with other
// ones.
void share_out_layers(const nn::Module& model, const ModelOptions& options = {});

namespace detail {
void distribute_model(const nn::Module& model, const ModelOptions& options);
void distribute_optimizer(const optim::Optimizer& optimizer, const DistributedStrategy& strategy);

// distributed_optimizer for as long as this lives, also in a thread that has joined no job: for trainers, which come
// and go. With a job's last optimizer ends what strategies have changed and added.
class DistributedWhile {
 public:
  DistributedWhile(const optim::Optimizer& optimizer, const DistributedStrategy& strategy);
  ~DistributedWhile();
  DistributedWhile(const DistributedWhile&) = delete;
  DistributedWhile& operator=(const DistributedWhile&) = delete;

 private:
  void end();
  std::vector<Variable> parameters_;
  bool is_alone_;  // the thread has a job of one rank meanwhile
};
}  // namespace detail

// Gives every rank rank 0's parameters and buffers, and from now on averages the gradients of its parameters over the
// ranks at the end of each backward(). ConfigError where ranks have other models: it names the parameters that differ
// in name, shape or type, or the modules, and the ranks.
//
// Where the mesh has a tensor axis, each rank along it keeps its part of what is split: call it before an optimizer is
// made of the model's parameters.
template <class Model>
Model distributed_model(Model model, const ModelOptions& options = {}) {
  detail::distribute_model(model, options);
  return model;
}

// Puts the gradients where they are reduced without being copied, and sets how the step is compiled: what the strategy
// does not choose stays as it is, and leave() puts back what it has changed. ConfigError for options that are not built
// yet, and where ranks have another strategy, optimizer or rate: key, values and ranks.
template <class Optimizer>
Optimizer distributed_optimizer(Optimizer optimizer, const DistributedStrategy& strategy = {}) {
  detail::distribute_optimizer(optimizer, with_environment(strategy));
  return optimizer;
}

}  // namespace bonfire::fleet
