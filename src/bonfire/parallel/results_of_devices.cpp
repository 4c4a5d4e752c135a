#include "bonfire/parallel/results_of_devices.h"

#include <algorithm>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/graph/engine.h"
#include "bonfire/graph/trace.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/indexing.h"
#include "bonfire/ops/shape_ops.h"

namespace bonfire::detail {

std::vector<Tensor> submitted(std::vector<Tensor> results) {
  commit();
  for (Tensor& result : results) {
    if (!result.defined()) throw_error<GraphError>("[data_parallel] the step returned an undefined tensor");
    const NodeOutput& output = result.value().node->outputs[result.value().index];
    if (!output.buffer)
      throw_error<GraphError>(
          "[data_parallel] the step returned a variable ({}); return what it computes, and read variables from "
          "copies()",
          to_string(result.spec()));
    Tensor plain = Tensor::from_buffer(output.buffer, output.spec);
    plain.value().node->outputs[0].ready = output.ready;
    result = std::move(plain);
  }
  return results;
}

namespace {

// One of the results of all devices.
class Parts {
 public:
  Parts(std::vector<Tensor> parts, std::span<const data::Share> shares) : parts_(std::move(parts)), shares_(shares) {}

  Tensor whole() const {
    if (parts_[0].rank() == 0) return is_floating(parts_[0].dtype()) ? mean() : total();
    for (size_t i = 0; i < parts_.size(); ++i)
      if (const Tensor& part = parts_[i]; part.size(0) != std::max<int64_t>(1, own(i)))
        throw_error<ShapeError>(
            "[data_parallel] the step returned {}, of {} samples; return one number, or a row for each sample",
            to_string(part.spec()), std::max<int64_t>(1, own(i)));
    return rows();
  }

 private:
  int64_t own(size_t i) const { return shares_[i].own; }
  Tensor here(size_t i) const { return parts_[i].to(parts_[0].device()); }

  Tensor mean() const {
    Tensor sum;
    for (size_t i = 0; i < parts_.size(); ++i)
      if (own(i) > 0) {
        Tensor part = here(i) * (static_cast<double>(own(i)) / static_cast<double>(samples_));
        sum = sum.defined() ? sum + part : part;
      }
    return sum;
  }

  Tensor total() const {
    Tensor sum;
    for (size_t i = 0; i < parts_.size(); ++i)
      if (own(i) > 0) sum = sum.defined() ? sum + here(i) : here(i);
    return sum;
  }

  // Side by side the rows of device 0 come first, then those of device 1, …
  Tensor rows() const {
    std::vector<Tensor> all;
    std::vector<int64_t> order(static_cast<size_t>(samples_));  // [sample]: its place in these
    int64_t rows = 0;
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (own(i) > 0) all.push_back(here(i));
      for (int64_t row = 0; row < own(i); ++row) order[static_cast<size_t>(shares_[i].place(row))] = rows++;
    }
    return index_select(concat(all, 0), 0, Tensor::from<int64_t>(order, {samples_}, parts_[0].device()));
  }

  std::vector<Tensor> parts_;  // [device]
  std::span<const data::Share> shares_;
  int64_t samples_ = shares_[0].all;  // of the whole batch
};

}  // namespace

std::vector<Tensor> put_together(std::vector<std::vector<Tensor>> results, std::span<const data::Share> shares) {
  const uint64_t step = StepContext::current().random.step;
  Trace trace;
  TraceScope scope(trace);
  NoGrad no_grad;
  std::vector<Tensor> whole;
  for (size_t i = 0; i < results[0].size(); ++i) {
    std::vector<Tensor> parts;
    for (std::vector<Tensor>& list : results) {
      if (list.size() != results[0].size())
        throw_error<GraphError>("[data_parallel] the step returned {} tensors on one device and {} on another",
                                results[0].size(), list.size());
      parts.push_back(std::move(list[i]));
    }
    whole.push_back(Parts(std::move(parts), shares).whole());
  }
  commit();
  StepContext::current().random.step = step;  // putting together is no step of the program's
  return whole;
}

}  // namespace bonfire::detail
