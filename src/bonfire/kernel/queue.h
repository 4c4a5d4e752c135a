#pragma once
// Program: the part of a plan that runs on one device, in order. Queue: a device's asynchronous line of programs.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bonfire/graph/engine.h"
#include "bonfire/kernel/kernel.h"

namespace bonfire {

// What an address of a program is, so that a queue that replays captured work knows what can change between
// submissions.
enum class AddressKind : uint8_t {
  fixed,   // seldom another one: arena, variables, constants (a variable moves when an optimizer gathers them)
  feed,    // read only; another place on each submission
  output,  // written; another place on each submission
  scalars  // read only: `offset` bytes into the block of host numbers that the queue copies in at each submission
};

struct Address {
  AddressKind kind = AddressKind::fixed;
  size_t bytes = 0;
  size_t offset = 0;
};

struct ProgramStep {
  std::shared_ptr<Kernel> kernel;
  std::vector<int> inputs, outputs;  // into the addresses
  int workspace = -1;
  std::optional<Line> line = {};  // of Candidate; empty: it runs in the queue
  bool agrees = false;            // in a line: the collectives of its axis that come after it wait for it
  std::vector<std::pair<int, int>> in_place = {};  // in a line: of Candidate
  std::string label;                               // op and module path, for errors and traces
};

// How long the steps of a program took, written by the queue.
struct StepTimes {
  std::vector<std::vector<double>> begins;   // [submission][step], on the steady clock
  std::vector<std::vector<double>> seconds;  // [submission][step]
};

struct Program {
  Device device;
  std::vector<Address> addresses;
  std::vector<ProgramStep> steps;
  std::shared_ptr<StepTimes> times = nullptr;  // set, while nothing is in flight, by whoever wants to know
};

// One submission of a program.
struct Submission {
  std::shared_ptr<const Program> program;
  std::vector<void*> addresses;
  std::vector<std::byte> scalars;                  // what AddressKind::scalars must hold
  std::vector<std::shared_ptr<Completion>> after;  // submissions on other devices whose results this one reads
  bool continues = false;                          // the step that this queue was given a program of just before
  std::shared_ptr<void> keep_alive;                // storages in use until it is done
  std::shared_ptr<StepGroups> groups = nullptr;    // of the job that submits it
  // Called when it fails, before what is beside the queue is waited for.
  FailureCalls after_failure = nullptr;
};

// Submissions run in the order given. submit() returns at once. It waits only when too many steps are in flight, before
// the first program of a step: another device may need what the others are to compute.
class Queue {
 public:
  virtual ~Queue() = default;
  virtual std::shared_ptr<Completion> submit(Submission submission) = 0;
  virtual void synchronize() = 0;  // until all submissions are done; does not throw their errors
  // Memory of at least `bytes` for temporaries that all programs of this queue share. The address never moves.
  virtual void* arena(size_t bytes) = 0;
  // Gives back what the arena has above `keep` bytes, after everything submitted; whoever uses it later gets new
  // memory.
  virtual void release_scratch(size_t /*keep*/) {}
  // A queue that runs steps side by side where they share no bytes loses that when temporaries share memory. Programs
  // whose temporaries need no more than this in all get memory of its own for each.
  virtual size_t spread_bytes() const { return 0; }
  // Neighbouring steps that may run at the same time when they share no bytes: temporaries of as many never do.
  virtual int steps_in_flight() const { return 1; }
  // Real time that steps have taken since the queue was made, without those in lines and what waits for them; of all
  // submissions that are done. 0: this queue does not measure.
  virtual double seconds_computing() { return 0; }
  virtual uint64_t memory_bytes() const = 0;  // that the device has for this process and those beside it
  // Which make of processor it is, where the host's own name for it does not say: "NVIDIA H200".
  virtual std::string model() const { return {}; }
  // Real time in which these submissions could only wait for collectives.
  virtual double seconds_communicating() { return 0; }
  // Runs body with this device's threads or stream, after everything submitted; for timing candidates.
  virtual void run_now(const std::function<void(const Run&)>& body) = 0;
};

Queue& queue_of(Device device);
void register_queues(DeviceType type, Queue& (*queue)(int index));

}  // namespace bonfire
