#pragma once
// The class of an image. In training a label may be a share of each class (mixup).

#include "bonfire/train/tasks/image_input.h"
#include "bonfire/train/tasks/known_tasks.h"

namespace bonfire::train {

extern const KnownTask kImageClassification;

std::shared_ptr<const Task> image_classification(const ImageInput& input);  // of as many classes as it names

}  // namespace bonfire::train
