#pragma once
// Which words were masked in a text.

#include "bonfire/train/tasks/known_tasks.h"

namespace bonfire::train {

extern const KnownTask kMaskedWords;

}  // namespace bonfire::train
