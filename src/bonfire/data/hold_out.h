#pragma once
// A part of a data set that is held back, so that something can be chosen on it that was not trained on.
//
//   data::HeldOut parts = data::hold_out(images, {.share = 0.1, .seed = 1});

#include "bonfire/data/dataset.h"

namespace bonfire::data {

// Some samples of another data set, in the order given.
class Subset final : public Dataset {
 public:
  Subset(std::shared_ptr<const Dataset> dataset, std::vector<int64_t> samples)
      : dataset_(std::move(dataset)), samples_(std::move(samples)) {}
  int64_t size() const override { return static_cast<int64_t>(samples_.size()); }
  Sample get(int64_t index) const override { return dataset_->get(number_of(index)); }
  int64_t label(int64_t index) const override { return dataset_->label(number_of(index)); }
  std::vector<std::string> class_names() const override { return dataset_->class_names(); }
  const std::vector<int64_t>& samples() const { return samples_; }  // their numbers in the other data set

 private:
  int64_t number_of(int64_t index) const {
    require_index(index);
    return samples_[static_cast<size_t>(index)];
  }

  std::shared_ptr<const Dataset> dataset_;
  std::vector<int64_t> samples_;
};

struct HoldOutOptions {
  double share = 0.1;  // of each class, rounded: one at least where a class has two, and never all
  uint64_t seed = 0;
  bool by_class = true;  // false: of all together, where samples have no class
};

struct HeldOut {
  std::shared_ptr<const Subset> kept, held;  // in the order of the data set
};

// A pure function of the labels, the share and the seed: the same on every rank, in every process.
HeldOut hold_out(const std::shared_ptr<const Dataset>& dataset, const HoldOutOptions& options);

}  // namespace bonfire::data
