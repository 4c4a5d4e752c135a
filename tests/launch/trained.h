#pragma once
// What `bonfire train` has done, whoever started its ranks, beside what one process does.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/launch/launched.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/digits.h"

namespace bonfire::testing {

// A smooth enough training: few steps at a small rate, the last batch of each epoch uneven.
inline Words settings(const ScratchFolder& folder, int64_t batch_size, const Words& more = {}) {
  return joined(
      {train::data_of_digits(folder), "place=cpu", "model=lenet", "lr=0.005", "limit=203", "drop_last=false",
       "epochs=2", "log_freq=1", "output=" + (folder / "runs").string(), fmt::format("batch_size={}", batch_size)},
      more);
}

// [step] by number, and the evaluations, as the log has them.
struct Log {
  std::map<int64_t, double> losses;
  std::vector<nlohmann::json> evaluations;
};
inline Log log_of(const std::filesystem::path& run) {
  Log log;
  std::ifstream stream(run / "metrics.jsonl");
  for (std::string line; std::getline(stream, line);) {
    nlohmann::json event = nlohmann::json::parse(line);
    if (event.at("event") == "step") log.losses[event.at("step")] = event.at("loss");
    if (event.at("event") == "evaluation") log.evaluations.push_back(event);
  }
  return log;
}

inline void expect_same(const Log& found, const Log& expected) {
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  for (const auto& [step, loss] : expected.losses) EXPECT_NEAR(found.losses.at(step), loss, 1e-5 * loss) << step;
  ASSERT_EQ(found.evaluations.size(), expected.evaluations.size());
  for (size_t i = 0; i < found.evaluations.size(); ++i) {
    double loss = expected.evaluations[i].at("loss"), top1 = expected.evaluations[i].at("top1");
    EXPECT_NEAR(found.evaluations[i].at("loss").get<double>(), loss, 1e-4 * loss);
    EXPECT_NEAR(found.evaluations[i].at("top1").get<double>(), top1, 0.002);
  }
}

inline Log trained_alone(const ScratchFolder& folder) {
  ChildProcess alone(joined({BONFIRE_PROGRAM, "train"}, settings(folder, 32)), clean());
  EXPECT_EQ(alone.wait(), 0) << alone.output();
  return log_of(folder / "runs/1");
}

}  // namespace bonfire::testing
