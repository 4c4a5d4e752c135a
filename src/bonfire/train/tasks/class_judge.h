#pragma once
// ClassJudge: what is taken for what and how confidently, and some samples to look at: those that are wrong with the
// highest confidence, and a few right ones.

#include "bonfire/train/report/reporter.h"
#include "bonfire/train/tasks/task.h"

namespace bonfire::train {

// What is shown of a sample.
using ShowSample = std::function<void(const data::Sample& sample, Prediction& prediction)>;

// Logits are the first of the outputs, [N, classes]; ConfigError otherwise. label: from a batch's, i64 [N]; empty: it
// is that; those that are no class are a DataError.
struct ClassJudgeOptions {
  int64_t classes = 0;
  bool ignores = false;  // labels that cross_entropy ignores are passed over
  std::function<Tensor(const Tensor& label)> label = {};
  ShowSample show = {};  // empty: nothing of any
};
std::unique_ptr<Judge> class_judge(const data::Dataset& samples, const ClassJudgeOptions& options);

// top-1 and top-5 of logits, as classification counts them.
std::vector<Metric> class_metrics(int64_t classes, const std::string& of = {});
std::vector<Tensor> class_sums(const Tensor& logits, const Tensor& target);

}  // namespace bonfire::train
