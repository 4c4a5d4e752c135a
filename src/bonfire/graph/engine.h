#pragma once
// Engine: who runs traces. The graph layer knows only this; the runtime registers itself as the engine.

#include <functional>
#include <memory>
#include <string>

#include "bonfire/graph/trace.h"

namespace bonfire {

class Engine {
 public:
  virtual ~Engine() = default;
  // Compiles the trace or finds its plan, launches it, gives its live outputs their buffers, and clears it.
  virtual void commit(Trace& trace) = 0;
  virtual void synchronize() = 0;  // waits for every launch of every device
};

Engine& engine();  // BONFIRE_CHECK fails when none is registered
void register_engine(Engine* engine);

// What a thread wants done as soon as a step of its own has failed, be it in a kernel, in compiling it, or by a number
// that is none: data parallel ends the waits of its peers there. Any thread may call it.
using StepFailure = std::function<void(const std::string& why)>;
void set_step_failure(std::shared_ptr<const StepFailure> call);  // this thread's; nullptr: nothing is done
std::shared_ptr<const StepFailure> step_failure();
void tell_step_failure(const std::string& why);  // calls this thread's

// The seed and the number of the step that launches read; see base/random.h.
struct RandomState {
  uint64_t seed = 0x5eed;
  uint64_t step = 0;
  uint64_t parameters = 0;  // drawn so far; the next one has the stream of this number (nn/init.h)
  // Row i of a batch is row i · world + rank of all ranks', and draws its numbers. Of a block: rank is its first row.
  uint64_t rank = 0, world = 1;
};
RandomState& random_state();  // this thread's; manual_seed sets it, and that of threads that start later

}  // namespace bonfire
