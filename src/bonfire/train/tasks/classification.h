#pragma once
// Samples of any kind into classes: the first of a model's outputs is logits [N, classes], a label is a class, i64.

#include "bonfire/train/tasks/task.h"

namespace bonfire::train {

struct ClassificationOptions {
  int64_t classes = 0;
  std::string unit = "samples";
  bool ignores = false;  // labels of -100, which the loss ignores, count for nothing; else they are no class
  // What people are shown of a sample in the report, as a line; empty: nothing.
  std::function<std::string(const data::Sample& sample)> words = {};
};

// Cross entropy, top-1 (the headline) and top-5, the confusion matrix and errors by confidence. The class names are the
// data set's.
std::shared_ptr<const Task> classification(const ClassificationOptions& options);

}  // namespace bonfire::train
