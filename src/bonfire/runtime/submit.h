#pragma once
// Submitting a plan: binding its leaves to memory, handing its programs to the queues, and bringing variables up to
// date.

#include <memory>
#include <span>
#include <vector>

#include "bonfire/graph/trace.h"
#include "bonfire/runtime/plan.h"

namespace bonfire::runtime {

struct SubmissionResult {
  std::vector<Buffer> outputs;
  std::shared_ptr<Completion> completion;
};

// Submits `plan` on the leaves of a trace of its structure. `assigned` are the variables that it writes: they become
// new versions. `outputs`: where they go; what is not given, or is null, gets memory of its own. A failure of an
// earlier submission is thrown here, once.
SubmissionResult submit(const std::shared_ptr<Plan>& plan, std::span<const Value> leaves,
                        std::span<const Variable> assigned, std::span<const Buffer> outputs = {});

// Converts the memory of variables whose layout the plan fixes.
void adopt_layouts(const Plan& plan, std::span<const Value> leaves);

void synchronize_submissions();  // waits for all of them; failures stay with the variables and values they touched

}  // namespace bonfire::runtime
