#pragma once
// Engine: who runs traces. The graph layer knows only this; the runtime registers itself as the engine.

#include "bonfire/graph/trace.h"

namespace bonfire {

class Engine {
 public:
  virtual ~Engine() = default;
  // Compiles the trace or finds its plan, submits it, gives its live outputs their buffers, and clears it.
  virtual void commit(Trace& trace) = 0;
  virtual void synchronize() = 0;  // waits for every submission, as bonfire::synchronize() says
};

Engine& engine();  // BONFIRE_CHECK fails when none is registered
void register_engine(Engine* engine);

}  // namespace bonfire
