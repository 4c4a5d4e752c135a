#pragma once
// Short runs: 90 digits in batches of 24, of which the fourth of each epoch has 18, for two epochs.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bonfire/train/config/config.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/course.h"
#include "tests/train/digits.h"

namespace bonfire::train {

// With these settings; later ones win.
inline Course train_few_digits(const testing::ScratchFolder& folder, const std::vector<std::string>& more,
                               int64_t stop_at = -1) {
  std::vector<std::string> settings{data_of_digits(folder),
                                    "output=" + (folder / "runs").string(),
                                    "limit=90",
                                    "epochs=2",
                                    "batch_size=24",
                                    "drop_last=false",
                                    "log_freq=1"};
  settings.insert(settings.end(), more.begin(), more.end());
  Course course;
  Trainer trainer(default_config(settings));
  trainer.add(std::make_unique<Witness>(course, stop_at));
  trainer.run();
  return course;
}

// Step by step; the run found may be a part of the other one. tolerance: as a share of the loss.
inline void expect_same_losses(const Course& found, const Course& expected, double tolerance) {
  ASSERT_FALSE(found.steps.empty());
  for (const StepReport& report : found.steps) {
    ASSERT_LE(report.step, static_cast<int64_t>(expected.steps.size()));
    const double other = expected.steps[static_cast<size_t>(report.step - 1)].loss;
    EXPECT_NEAR(report.loss, other, tolerance * other) << "step " << report.step;
  }
}

}  // namespace bonfire::train
