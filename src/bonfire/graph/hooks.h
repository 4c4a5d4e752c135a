#pragma once
// Hooks: an ordered list of calls. Any number of parts of the program may have one in it at a time.
//
//   Hook averaging = context.after_update.add([](const optim::Optimizer& optimizer) { ... });
//   averaging = {};  // from now on it is not called
//
// A step that compile() has traced is another one when the list has changed.

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "bonfire/base/hash.h"
#include "bonfire/graph/step_state.h"

namespace bonfire {

// Keeps one call in its list while it lives.
class Hook {
 public:
  Hook() = default;
  explicit Hook(std::shared_ptr<void> place) : place_(std::move(place)) {}

 private:
  std::shared_ptr<void> place_;
};

template <class Signature>
class Hooks {
 public:
  using Call = std::function<Signature>;
  struct Entry {
    uint64_t id;
    Call call;
  };
  using List = std::shared_ptr<const std::vector<Entry>>;

  [[nodiscard]] Hook add(Call call) {
    static std::atomic<uint64_t> last_id{0};
    const uint64_t id = ++last_id;
    std::vector<Entry> longer = *state_->list;
    longer.push_back({id, std::move(call)});
    state_->become(std::move(longer));
    return Hook(std::shared_ptr<void>(nullptr, [id, weak = std::weak_ptr<State>(state_)](void*) {
      const std::shared_ptr<State> state = weak.lock();
      if (state == nullptr) return;
      std::vector<Entry> shorter = *state->list;
      std::erase_if(shorter, [&](const Entry& entry) { return entry.id == id; });
      state->become(std::move(shorter));
    }));
  }

  // In the order in which they were added; stays as it is while the list changes.
  List calls() const {
    state_->which.get();
    return state_->list;
  }

 private:
  struct State {
    List list = std::make_shared<const std::vector<Entry>>();
    StepState<uint64_t> which;  // tells one list of calls from another

    void become(std::vector<Entry> other) {
      base::Hash128 hash;
      for (const Entry& entry : other) hash.mix(entry.id);
      which = other.empty() ? 0 : hash.low;
      list = std::make_shared<const std::vector<Entry>>(std::move(other));
    }
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace bonfire
