#pragma once
// What is in an image and where: a class and a box. Of the model's outputs the first is logits [N, classes], the second
// boxes [N, 4]: left, top, right, bottom as shares of the image's width and height. A label is data::BoxLabel.

#include "bonfire/train/tasks/image_input.h"
#include "bonfire/train/tasks/known_tasks.h"

namespace bonfire::train {

extern const KnownTask kBoxes;

std::shared_ptr<const Task> boxes(const ImageInput& input);  // of as many classes as it names

// Of each pair of boxes [N, 4]: the area that they share over the area that they cover, [N]; 0 where they are apart,
// and for a box whose sides are the wrong way round.
Tensor overlap_of(const Tensor& boxes, const Tensor& others);

}  // namespace bonfire::train
