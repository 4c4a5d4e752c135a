#pragma once
// Node: one traced operation, or a leaf (a tensor that exists already, a variable's version, a host scalar), with its
// output values inside it. Users hold outputs through Tensor; nodes hold their inputs, and that chain is the history
// that a backward pass walks. A commit gives live outputs their memory and drops the inputs of every node whose history
// nobody can ask for any more.

#include <atomic>
#include <memory>
#include <span>
#include <string>

#include "bonfire/graph/op.h"
#include "bonfire/graph/phase.h"

namespace bonfire {

class VariableState;

// The end of an asynchronous submission. wait() returns when its results are there, or throws what failed.
class Completion {
 public:
  virtual ~Completion() = default;
  virtual void wait() = 0;
  virtual bool done() = 0;  // wait() would not block
  // Of a submission over several devices: its parts, of one device each. Otherwise none.
  virtual std::span<const std::shared_ptr<Completion>> parts() const { return {}; }
  Device device;                      // whose queue it belongs to, where it has no parts
  std::atomic<bool> reported{false};  // a reader has been told of its failure; the next commit need not repeat it
};

enum class LeafKind : uint8_t {
  none,      // an op's node
  feed,      // memory that exists: a tensor from the host, or the result of an earlier commit
  variable,  // one version of a variable
  scalar,    // a host number, read at each submission
  random     // i64 [4]: seed, step, rank and world (RandomState), read at each submission
};

struct NodeOutput {
  TensorSpec spec;
  std::atomic<int32_t> handles{0};  // Tensors that name this output
  bool requires_grad = false;
  Buffer buffer;                      // row-major, set by the commit that computed it (variables: see VariableState)
  std::shared_ptr<Completion> ready;  // who writes the buffer; null when it is there already

  explicit NodeOutput(const TensorSpec& output_spec) : spec(output_spec) {}
  NodeOutput(NodeOutput&& other) noexcept;
};

using NodeInputs = base::InlineVector<Value, 3>;

class Node : public base::RefCounted<Node> {
 public:
  Node();  // not defaulted here: `new Node()` would first fill half a kilobyte with zeros
  static void destroy(Node* node) noexcept;  // iterative: a long history must not overflow the stack
  static void* operator new(size_t bytes);   // from a per-thread list of freed nodes
  static void operator delete(void* memory) noexcept;

  bool is_leaf() const { return leaf != LeafKind::none; }
  bool requires_grad() const;

  const Op* op = nullptr;  // of a leaf: null
  Attributes attributes;
  NodeInputs inputs;
  base::InlineVector<NodeOutput, 1> outputs;
  const std::string* path = nullptr;  // module path, interned

  uint64_t sequence =
      0;               // higher than those of its inputs, whichever thread made them, and of this thread's nodes before
  uint64_t trace = 0;  // the trace it is pending in, while it is
  uint32_t position = 0;  // in that trace
  Origin origin;
  Phase phase = Phase::forward;
  LeafKind leaf = LeafKind::none;
  bool committed = false;  // has run, or was dead when its trace ran
  bool consumed = false;   // a backward pass went through it without retain_graph
  bool recorded = false;   // inputs are a history: an input requires a gradient, and recording was on

  uint64_t walk = 0;  // scratch of the backward walk: which walk last met this node, and where it put it
  uint32_t walk_slot = 0;
  uint32_t recomputed_part = 0;  // of its trace, in which it is; 0: none

  // Of a variable leaf, one version: how many inputs of committed nodes with a history it is, whether a backward pass
  // through these reads it, and the number of the version (kAnyVersion: whichever there is at a submission).
  static constexpr uint64_t kAnyVersion = UINT64_MAX;
  std::atomic<uint32_t> history_uses{0};
  bool needed_by_history = false;
  uint64_t version = 0;
  // Whether somebody may still ask for output 0: by a handle, or by a backward pass that is still to come.
  bool wanted() const;
  void count_history_uses();   // it is committed, and its history stays
  void forget_history_uses();  // it is consumed, or goes: the inputs that it was counted at

  std::shared_ptr<double> scalar;                   // of a scalar leaf
  base::IntrusivePtr<VariableState> variable;       // of a variable leaf
  base::IntrusivePtr<VariableState> leaf_gradient;  // of a feed leaf that requires a gradient

 private:
  friend class base::RefCounted<Node>;
};

using NodePtr = base::IntrusivePtr<Node>;

inline const TensorSpec& Value::spec() const { return node->outputs[index].spec; }

}  // namespace bonfire
