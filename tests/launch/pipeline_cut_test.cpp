// A run in stages says where it was cut, and goes on cut there.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/launch/launched.h"
#include "tests/launch/trained.h"
#include "tests/support/expect_error.h"

namespace bonfire::launch::pipeline_cut_test {
namespace {

using testing::ChildProcess;
using testing::clean;
using testing::expect_mentions;
using testing::joined;
using testing::ScratchFolder;
using testing::settings;
using testing::Words;

// Of the newest checkpoint.
nlohmann::json cut_in(const std::filesystem::path& run) {
  std::filesystem::path newest;
  for (const auto& entry : std::filesystem::directory_iterator(run / "checkpoints"))
    if (entry.path().filename().string().starts_with("step-")) newest = std::max(newest, entry.path());
  std::ifstream file(newest / "state.json");
  return nlohmann::json::parse(file).at("cut");
}

TEST(LaunchPipelineCut, StaysWithTheRun) {
  ScratchFolder folder;
  auto train = [&](const Words& more) {
    ChildProcess run(joined({BONFIRE_PROGRAM, "train", "--nproc", "2"}, settings(folder, 32, more)), clean());
    EXPECT_EQ(run.wait(), 0) << run.output();
    return run.output();
  };
  const Words stages{"mesh.pipeline=2", "pipeline.micro_batches=4", "limit=64"};
  train(joined(stages, {"epochs=1", "pipeline.cut=[fc3]"}));  // where no balance would be
  EXPECT_EQ(cut_in(folder / "runs/1"), nlohmann::json({"fc3"}));
  train(joined(stages, {"epochs=2", "pipeline.cut=auto", "resume=auto"}));
  EXPECT_EQ(cut_in(folder / "runs/1"), nlohmann::json({"fc3"}));
  expect_mentions(train(joined(stages, {"epochs=1"})), {"the model is cut before ", ", by operations and bytes, "});
  EXPECT_NE(cut_in(folder / "runs/2"), nlohmann::json({"fc3"}));
}

}  // namespace
}  // namespace bonfire::launch::pipeline_cut_test
