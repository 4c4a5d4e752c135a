#pragma once
// The class of a sequence of symbols.

#include "bonfire/train/tasks/known_tasks.h"

namespace bonfire::train {

extern const KnownTask kSequenceClassification;

}  // namespace bonfire::train
