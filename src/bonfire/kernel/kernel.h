#pragma once
// Kernel: how one device computes one node. A backend registers, per op, a function that lists the candidates it has
// for a node; the planner chooses one, builds it once, and from then on only runs it.
//
//   const bool registered = register_kernel("tanh", DeviceType::cpu, [](const KernelRequest& request) {
//     return one_candidate(request, [count = request.node.outputs[0].shape.count()](const Run& run) { ... });
//   });

#include <compare>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bonfire/base/thread_pool.h"
#include "bonfire/graph/graph.h"
#include "bonfire/tensor/storage.h"

namespace bonfire {

// Where a kernel runs that waits for other ranks on the host: in a line beside its device's queue, which goes on with
// steps that do not touch its operands. What is in one line is done in order, by a thread of its own; two lines never
// wait for each other.
struct Line {
  enum class Kind : uint8_t {
    collective,  // number: which of the axis's communicators
    pack,        // brings what is to be sent into memory of its own, and waits for nobody; number: the peer's place
    send,        // number: the peer's place along the axis
    receive
  };
  Axis axis = Axis::data;
  Kind kind = Kind::collective;
  int number = 0;

  friend auto operator<=>(const Line&, const Line&) = default;
};
std::string to_string(const Line& line);  // "data, communicator 0", "to rank 1 along pipeline"

// Takes work that may go on after the step that gives it, and after its program: it touches neither arena nor operands.
// What fails there fails the queue's next submission.
class Outbox {
 public:
  virtual ~Outbox() = default;
  virtual void post(const Line& line, std::function<void()> work) = 0;
};

// The operands of one run. Pointers are into memory of the node's device, in the layouts that the candidate asked for.
struct Run {
  std::span<void* const> inputs;
  std::span<void* const> outputs;
  void* workspace;               // Candidate::workspace_bytes
  ThreadPool* threads;           // of a CPU device; null elsewhere
  void* stream;                  // of a CUDA device (a cudaStream_t); null elsewhere
  StepGroups* groups = nullptr;  // of the job that submitted it; null: it has none
  Outbox* outbox = nullptr;      // of a candidate with a line

  template <class T>
  const T* input(size_t i) const {
    return static_cast<const T*>(inputs[i]);
  }
  template <class T>
  T* output(size_t i = 0) const {
    return static_cast<T*>(outputs[i]);
  }
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  // Computes the outputs. Called many times, always by one thread at a time. On a CUDA device it only enqueues on the
  // stream, and always the same work, so that it can be captured; but a candidate with a line runs on the host
  // everywhere, with operands in its memory.
  virtual void run(const Run& run) = 0;
};

struct Candidate {
  std::string name;                         // "direct", "winograd", "onednn:jit_avx512"
  std::vector<Layout> input_layouts = {};   // one per input
  std::vector<Layout> output_layouts = {};  // one per output
  size_t workspace_bytes = 0;
  // Outputs that may be written over an input whose last use this is: (output, input), of equal bytes.
  std::vector<std::pair<int, int>> in_place = {};
  std::optional<Line> line = {};  // it waits for other ranks on the host; else it runs in the queue, or on the stream
  // Its rounding error (root mean square, against f64), as a multiple of the plain kernel's: at most this on numbers of
  // training, by `bonfire bench exactness`.
  double error = 1;
  // Whether a result whose products are all zero is zero. Others may turn it into noise, which optimizers that divide
  // gradients by their size (Adam) make large.
  bool keeps_zeros = true;
  std::function<std::unique_ptr<Kernel>()> build = {};
};

// A candidate with a larger error, or that does not keep zeros, is offered only where speed matters more
// (KernelRequest::fast_math).
inline constexpr double kMostError = 16;

struct KernelRequest {
  const GraphNode& node;
  std::span<const Layout> arriving;  // how each input lies already: a candidate that takes it so needs no reorder
  bool fast_math = false;            // candidates beyond that are wanted too
};

using CandidateList = std::function<std::vector<Candidate>(const KernelRequest&)>;

// `op` need not be registered yet. Several lists for the same op and device type add up (own kernels, then oneDNN).
// Returns true, so that a namespace-scope constant can call it.
bool register_kernel(std::string op, DeviceType type, CandidateList list);

// Registered under this name, a list serves every op with Trait::elementwise that has no list of its own.
inline constexpr std::string_view kAnyElementwise = "(elementwise)";

// Whether nodes of the op have a list on devices of that type. For some inputs it may still offer none. Passes ask it
// before they make such a node.
bool has_kernel(const Op& op, Device device);

// All candidates for the node on its device that are exact enough. DeviceError naming op and device when there is none.
std::vector<Candidate> candidates_for(const KernelRequest& request);

// One candidate with everything row-major, and `body(const Run&)` as its kernel.
template <class Body>
class FunctionKernel final : public Kernel {
 public:
  explicit FunctionKernel(Body body) : body_(std::move(body)) {}
  void run(const Run& run) override { body_(run); }

 private:
  Body body_;
};

Candidate row_major_candidate(const KernelRequest& request, std::string name);

template <class Body>
Candidate make_candidate(const KernelRequest& request, std::string name, Body body) {
  Candidate candidate = row_major_candidate(request, std::move(name));
  candidate.build = [body = std::move(body)] { return std::make_unique<FunctionKernel<Body>>(body); };
  return candidate;
}

template <class Body>
std::vector<Candidate> one_candidate(const KernelRequest& request, Body body) {
  std::vector<Candidate> list;
  list.push_back(make_candidate(request, "plain", std::move(body)));
  return list;
}

}  // namespace bonfire
