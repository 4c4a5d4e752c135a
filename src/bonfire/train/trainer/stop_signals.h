#pragma once
// Ctrl-C (SIGINT), SIGTERM and SIGHUP stop a training run: it finishes its step, saves, and ends. That is said at once.
// A second one ends the program without the step, but not before a checkpoint that is being written is whole; a third
// one at once. What comes within 0.3 s counts as one: timeout(1) and shells signal a process and its group. SIGHUP is
// never a second one, and is left alone where it was ignored (nohup).
//
//   trainer.add(train::stop_signals());

#include <memory>

#include "bonfire/train/report/reporter.h"

namespace bonfire::train {

// In force until it is destroyed; one at a time. `speaks`: whether this process tells, of several ranks the first.
std::unique_ptr<Reporter> stop_signals(bool speaks = true);

}  // namespace bonfire::train
