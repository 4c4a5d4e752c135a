#include "bonfire/runtime/submit.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <set>

#include "bonfire/base/error.h"
#include "bonfire/graph/engine.h"
#include "bonfire/graph/variable_moves.h"
#include "bonfire/runtime/plan_cache.h"

namespace bonfire::runtime {

namespace {

class AllOf final : public Completion {
 public:
  explicit AllOf(std::vector<std::shared_ptr<Completion>> parts) : parts_(std::move(parts)) {}
  void wait() override {  // for all of them, whatever fails: somebody may reuse their memory then
    std::exception_ptr first;
    for (const auto& part : parts_) {
      try {
        part->wait();
      } catch (...) {
        if (!first) first = std::current_exception();
      }
    }
    if (first) std::rethrow_exception(first);
  }
  bool done() override {
    for (const auto& part : parts_)
      if (!part->done()) return false;
    return true;
  }
  std::span<const std::shared_ptr<Completion>> parts() const override { return parts_; }

 private:
  std::vector<std::shared_ptr<Completion>> parts_;
};

// A thread that submits. Nobody but itself is told of its failures, while it lives.
struct Submitter {};

std::shared_ptr<Submitter>& this_submitter() {
  thread_local auto self = std::make_shared<Submitter>();
  return self;
}

struct InFlight {
  uint64_t number = 0;  // rises from submission to submission
  std::shared_ptr<Completion> completion;
  std::vector<Variable> assigned;
  // It or one before it; then only its own thread waits: another may be the rank it waits for.
  bool waits_for_ranks = false;
  std::weak_ptr<Submitter> submitter;
  std::exception_ptr failure = nullptr;  // found by another thread; its own has not looked yet

  bool of(const std::shared_ptr<Submitter>& self) const {
    return !submitter.owner_before(self) && !self.owner_before(submitter);
  }
};

// Submissions whose outcome nobody has looked at yet, oldest first. One stays here while it is waited for, so that
// whoever else waits for all of them waits for it too.
struct Watch {
  std::mutex mutex;
  std::deque<std::shared_ptr<InFlight>> submissions;
  uint64_t last = 0;  // number
};

Watch& watch() {
  static Watch instance;
  return instance;
}

void mark_failed(const InFlight& submission, const std::string& why) {
  for (const Variable& variable : submission.assigned)
    variable.state().failure = why + " (variable " + (variable.name().empty() ? "without a name" : variable.name()) +
                               " was being updated by that step and cannot be trusted: load it again)";
}

std::string text_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "a step has failed";
  }
}

std::exception_ptr outcome_of(Completion& completion) {
  try {
    completion.wait();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

// Looks at submissions that are done, or waits for all that there are. Throws the first failure of this thread's that
// no reader has been told of. A failure of another thread is left to that one, if it is still there.
void look_at_finished(bool wait_for_all) {
  const std::shared_ptr<Submitter>& self = this_submitter();
  std::exception_ptr first;
  Watch& watched = watch();
  std::unique_lock lock(watched.mutex);
  const uint64_t last = watched.last;  // what others submit from now on is not waited for
  while (true) {
    auto next = std::find_if(watched.submissions.begin(), watched.submissions.end(), [&](const auto& submission) {
      return submission->of(self) ||
             (!submission->waits_for_ranks && (!submission->failure || submission->submitter.expired()));
    });
    if (next == watched.submissions.end() || (*next)->number > last) break;
    std::shared_ptr<InFlight> submission = *next;
    if (!wait_for_all && !submission->completion->done()) break;
    lock.unlock();
    std::exception_ptr failure = outcome_of(*submission->completion);
    lock.lock();
    const bool own = submission->of(self);
    if (failure && !own && !submission->submitter.expired()) {
      submission->failure = failure;
      continue;
    }
    next = std::find(watched.submissions.begin(), watched.submissions.end(), submission);
    if (next == watched.submissions.end()) continue;  // another thread that waited for it was first
    watched.submissions.erase(next);
    if (!failure) continue;
    mark_failed(*submission, text_of(failure));
    if (own && !first && !submission->completion->reported) first = failure;
  }
  if (first) std::rethrow_exception(first);
}

void write_scalar(const Node& leaf, std::byte* target) {
  if (leaf.leaf == LeafKind::random) {
    const RandomState& random = StepContext::current().random;
    uint64_t words[4] = {random.seed, random.step, random.rank, random.world};
    std::memcpy(target, words, sizeof words);
    return;
  }
  double number = *leaf.scalar;
  dispatch(leaf.outputs[0].spec.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T value;
    if constexpr (std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>) {
      value = static_cast<T>(static_cast<float>(number));
    } else {
      value = static_cast<T>(number);
    }
    std::memcpy(target, &value, sizeof value);
  });
}

Buffer& variable_buffer(VariableState& state) {
  if (!state.failure.empty()) throw_error<GraphError>("{}", state.failure);
  return state.memory();
}

// Builds the submissions of one plan.
class Binder {
 public:
  Binder(const Plan& plan, std::span<const Value> leaves, std::span<const Buffer> outputs)
      : plan_(plan), leaves_(leaves) {
    for (size_t i = 0; i < plan.outputs.size(); ++i) {
      const bool is_given = i < outputs.size() && outputs[i];
      if (is_given) kept_->storages.push_back(outputs[i].storage);
      outputs_.push_back(is_given ? outputs[i] : make_buffer(plan.outputs[i]));
    }
    if (plan.crossing_memory != nullptr) kept_->crossings = plan.crossing_memory->take();
  }

  Submission bind(const PlanProgram& program) {
    Submission submission;
    submission.program = program.program;
    Device device = program.program->device;
    char* arena = program.arena_bytes == 0 ? nullptr : static_cast<char*>(queue_of(device).arena(program.arena_bytes));
    submission.addresses.reserve(program.locations.size());
    for (const Location& location : program.locations)
      submission.addresses.push_back(address(location, arena, device, submission));
    submission.scalars.resize(program.scalar_bytes);
    for (const ScalarSlot& slot : program.scalars)
      write_scalar(*leaves_[slot.leaf].node, submission.scalars.data() + slot.offset);
    submission.keep_alive = kept_;
    submission.groups = StepContext::current().groups;
    submission.after_failure = StepContext::current().after_failure.calls();
    return submission;
  }

  std::vector<Buffer>& outputs() { return outputs_; }

 private:
  Buffer make_buffer(const TensorSpec& spec) {
    Buffer buffer{std::make_shared<Storage>(spec.device, std::max<size_t>(1, spec.bytes()))};
    kept_->storages.push_back(buffer.storage);
    return buffer;
  }

  // What a queue has been given before is done before; other devices are waited for.
  static void wait_for(const std::shared_ptr<Completion>& ready, Device device, Submission& submission) {
    for (const std::shared_ptr<Completion>& part : ready->parts())
      if (part->device != device) submission.after.push_back(part);
    if (ready->parts().empty() && ready->device != device) submission.after.push_back(ready);
  }

  static void require_version(const Node& leaf) {
    if (leaf.version == Node::kAnyVersion || leaf.version == leaf.variable->version) return;
    throw_error<GraphError>(
        "[submit] variable {} was updated after this step was traced and before it was submitted; where another thread "
        "updates it, commit() the step first",
        leaf.variable->name.empty() ? "without a name" : leaf.variable->name);
  }

  void* address(const Location& location, char* arena, Device device, Submission& submission) {
    switch (location.source) {
      case Source::arena: return arena + location.offset;
      case Source::scalar: return nullptr;  // the queue fills it in
      case Source::output: return outputs_[location.index].data();
      case Source::crossing:
        return static_cast<char*>((*kept_->crossings)[static_cast<size_t>(location.index)].data()) + location.offset;
      case Source::constant: return plan_.constants[location.index].data();
      case Source::variable: {
        require_version(*leaves_[location.index].node);
        Buffer& buffer = variable_buffer(*leaves_[location.index].node->variable);
        kept_->storages.push_back(buffer.storage);
        return buffer.data();
      }
      case Source::feed: break;
    }
    const Value& value = leaves_[location.index];
    const NodeOutput& output = value.node->outputs[value.index];
    BONFIRE_CHECK(static_cast<bool>(output.buffer), "a value that a later step needs was not kept: {} of [{}]",
                  to_string(output.spec), value.node->op == nullptr ? "leaf" : value.node->op->name);
    if (output.ready) wait_for(output.ready, device, submission);
    kept_->storages.push_back(output.buffer.storage);
    return output.buffer.data();
  }

  const Plan& plan_;
  std::span<const Value> leaves_;
  struct Kept {  // until all programs are done
    std::vector<std::shared_ptr<Storage>> storages;
    std::shared_ptr<CrossingMemory::Set> crossings;
  };
  std::shared_ptr<Kept> kept_ = std::make_shared<Kept>();
  std::vector<Buffer> outputs_;
};

}  // namespace

SubmissionResult submit(const std::shared_ptr<Plan>& plan, std::span<const Value> leaves,
                        std::span<const Variable> assigned, std::span<const Buffer> outputs) {
  look_at_finished(false);
  Binder binder(*plan, leaves, outputs);
  std::vector<std::shared_ptr<Completion>> completions;
  std::set<Device> begun;
  for (const PlanProgram& program : plan->programs) {
    Submission submission = binder.bind(program);
    submission.continues = !begun.insert(program.program->device).second;
    for (int earlier : program.after) submission.after.push_back(completions[earlier]);
    completions.push_back(queue_of(program.program->device).submit(std::move(submission)));
  }
  note_submission(*plan);
  SubmissionResult result{std::move(binder.outputs()), nullptr};
  if (completions.size() == 1) result.completion = completions[0];
  if (completions.size() > 1) result.completion = std::make_shared<AllOf>(std::move(completions));
  for (const Variable& variable : assigned) {
    VariableState& state = variable.state();
    state.ready = result.completion;
    ++state.version;
    state.leaf = nullptr;
  }
  if (result.completion) {
    const std::shared_ptr<Submitter>& self = this_submitter();
    Watch& watched = watch();
    std::lock_guard lock(watched.mutex);
    const bool after_ranks =
        std::any_of(watched.submissions.begin(), watched.submissions.end(),
                    [&](const auto& earlier) { return earlier->waits_for_ranks && earlier->of(self); });
    watched.submissions.push_back(
        std::make_shared<InFlight>(InFlight{.number = ++watched.last,
                                            .completion = result.completion,
                                            .assigned = {assigned.begin(), assigned.end()},
                                            .waits_for_ranks = plan->waits_for_ranks || after_ranks,
                                            .submitter = self}));
  }
  return result;
}

void adopt_layouts(const Plan& plan, std::span<const Value> leaves) {
  for (size_t i = 0; i < leaves.size(); ++i) {
    VariableState* state = leaves[i].node->variable.get();
    if (leaves[i].node->leaf != LeafKind::variable || !plan.leaf_layout_used[i] || state->layout_fixed) continue;
    state->layout_fixed = true;
    if (state->layout == plan.leaf_layouts[i]) continue;
    if (state->has_values) {  // else they are made in that order
      engine().synchronize();
      Buffer& buffer = variable_buffer(*state);
      const TensorSpec& stored = state->stored;
      DeviceMemory& memory = memory_of(stored.device);
      std::vector<std::byte> before(stored.bytes()), after(stored.bytes());
      memory.copy_to_host(before.data(), buffer.data(), before.size());
      convert_layout(before.data(), state->layout, after.data(), plan.leaf_layouts[i], stored.shape, stored.dtype);
      memory.copy_from_host(buffer.data(), after.data(), after.size());
    }
    state->layout = plan.leaf_layouts[i];
    note_variable_move();
  }
}

void synchronize_submissions() {
  try {
    look_at_finished(true);
  } catch (const std::exception&) {
    // The failure stays with the variables it touched and with the values that were to come out.
  }
}

}  // namespace bonfire::runtime
