#include "bonfire/train/tasks/task.h"

#include "bonfire/base/error.h"

namespace bonfire::train {

namespace {

class TaskOfFunctions final : public Task {
 public:
  explicit TaskOfFunctions(TaskFunctions functions) : of_(std::move(functions)) {}

  std::string name() const override { return of_.name; }
  std::string unit() const override { return of_.unit; }
  Tensor input(const Tensor& batch) const override { return of_.input ? of_.input(batch) : batch; }
  Tensor loss(const Outputs& outputs, const Tensor& label) const override { return of_.loss(outputs, label); }
  Tensor targets(const Tensor& label) const override { return of_.targets ? of_.targets(label) : Tensor(); }

  std::vector<Metric> metrics() const override {
    std::vector<Metric> all;
    for (const MetricFunctions& one : of_.metrics) all.push_back(one.metric);
    return all;
  }
  std::vector<Tensor> sums(const Outputs& outputs, const Tensor& label) const override {
    std::vector<Tensor> all;
    for (const MetricFunctions& one : of_.metrics) all.push_back(one.sum(outputs, label));
    return all;
  }
  std::vector<double> values(std::span<const double> sums, double targets) const override {
    std::vector<double> means = Task::values(sums, targets);
    for (size_t i = 0; i < means.size(); ++i)
      if (of_.metrics[i].of_mean) means[i] = of_.metrics[i].of_mean(means[i]);
    return means;
  }

 private:
  TaskFunctions of_;
};

}  // namespace

std::vector<double> Task::values(std::span<const double> sums, double targets) const {
  std::vector<double> means;
  for (double sum : sums) means.push_back(sum / targets);
  return means;
}

std::shared_ptr<const Task> make_task(TaskFunctions functions) {
  if (functions.name.empty() || !functions.loss)
    throw_error<ConfigError>("[task] '{}' has no {}, expected a name and a loss", functions.name,
                             functions.name.empty() ? "name" : "loss");
  for (const MetricFunctions& one : functions.metrics)
    if (one.metric.name.empty() || !one.sum)
      throw_error<ConfigError>("[task] a metric of '{}' ('{}') has no {}, expected both a name and a sum",
                               functions.name, one.metric.name, one.metric.name.empty() ? "name" : "sum");
  return std::make_shared<TaskOfFunctions>(std::move(functions));
}

std::vector<Score> scores_of(const Task& task, std::span<const double> sums, double targets) {
  const std::vector<Metric> metrics = task.metrics();
  const std::vector<double> values = task.values(sums, targets);
  if (values.size() > metrics.size())
    throw_error<ConfigError>("[task] '{}' gives {} values for {} metrics", task.name(), values.size(), metrics.size());
  std::vector<Score> scores;
  for (size_t i = 0; i < values.size(); ++i) scores.push_back({metrics[i], values[i]});
  return scores;
}

Metric headline_of(const Task& task) {
  const std::vector<Metric> metrics = task.metrics();
  return metrics.empty() ? loss_metric() : metrics[0];
}

}  // namespace bonfire::train
