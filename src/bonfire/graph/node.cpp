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

void Node::destroy(Node* node) noexcept {
  // The outermost call drains the list; calls from inside `delete` only add to it.
  thread_local std::vector<Node*> doomed;
  thread_local bool draining = false;
  doomed.push_back(node);
  if (draining) return;
  draining = true;
  while (!doomed.empty()) {
    Node* next = doomed.back();
    doomed.pop_back();
    if (next->variable && next->variable->leaf == next) next->variable->leaf = nullptr;
    delete next;
  }
  draining = false;
}

}  // namespace bonfire
