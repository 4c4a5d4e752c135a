#pragma once
// The next token of running text.

#include "bonfire/train/tasks/known_tasks.h"

namespace bonfire::train {

extern const KnownTask kNextToken;

}  // namespace bonfire::train
