#include "bonfire/graph/node.h"

#include <new>
#include <vector>

#include "bonfire/graph/variable.h"

namespace bonfire {

namespace {

// Freed nodes of this thread, for reuse: a step makes and frees thousands of the same size.
struct FreeList {
  std::vector<void*> blocks;
  ~FreeList() {
    for (void* block : blocks) ::operator delete(block);
    closed = true;
  }
  static thread_local bool closed;
};
thread_local bool FreeList::closed = false;

FreeList& free_list() {
  thread_local FreeList list;
  return list;
}

}  // namespace

NodeOutput::NodeOutput(NodeOutput&& other) noexcept
    : spec(other.spec),
      handles(other.handles.load()),
      requires_grad(other.requires_grad),
      buffer(std::move(other.buffer)),
      ready(std::move(other.ready)) {}

Node::Node() = default;

void* Node::operator new(size_t bytes) {
  if (!FreeList::closed) {
    std::vector<void*>& blocks = free_list().blocks;
    if (!blocks.empty()) {
      void* block = blocks.back();
      blocks.pop_back();
      return block;
    }
  }
  return ::operator new(bytes);
}

void Node::operator delete(void* memory) noexcept {
  constexpr size_t kMostKept = 8192;
  if (FreeList::closed || free_list().blocks.size() >= kMostKept) {
    ::operator delete(memory);
  } else {
    free_list().blocks.push_back(memory);
  }
}

bool Node::requires_grad() const {
  for (const NodeOutput& output : outputs)
    if (output.requires_grad) return true;
  return false;
}

bool Node::wanted() const {
  return outputs[0].handles.load(std::memory_order_relaxed) > 0 ||
         (needed_by_history && history_uses.load(std::memory_order_relaxed) > 0);
}

void Node::count_history_uses() {
  for (const Value& input : inputs)
    if (input.node->variable) input.node->history_uses.fetch_add(1, std::memory_order_relaxed);
}

void Node::forget_history_uses() {
  if (!committed || !recorded || consumed) return;  // then it was never counted, or is no longer
  for (const Value& input : inputs)
    if (input.node->variable) input.node->history_uses.fetch_sub(1, std::memory_order_relaxed);
}

void Node::destroy(Node* node) noexcept {
  // The outermost call drains the list; calls from inside `delete` only add to it. The list is that call's own: a
  // thread's last trace may go after the thread's other variables.
  thread_local base::InlineVector<Node*, 32>* doomed = nullptr;
  if (doomed != nullptr) {
    doomed->push_back(node);
    return;
  }
  base::InlineVector<Node*, 32> list;
  list.push_back(node);
  doomed = &list;
  while (!list.empty()) {
    Node* next = list.back();
    list.pop_back();
    next->forget_history_uses();
    if (next->variable && next->variable->leaf == next) next->variable->leaf = nullptr;
    delete next;
  }
  doomed = nullptr;
}

}  // namespace bonfire
