#include "bonfire/train/report/stages_table.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "bonfire/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::train::stages_table_test {
namespace {

using Words = std::vector<std::string>;

std::string table_of(const Words& settings) {
  const Config config = default_config(settings);
  return stages_table(step_subject("lenet", {.batch = rows_of_micro_batch(config)}), config);
}

void expect_in(const std::string& text, const Words& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
}

TEST(StagesTable, SaysWhereAndByWhatTheModelIsCut) {
  const Words settings{"model=lenet", "batch_size=32", "mesh.pipeline=2"};
  expect_in(table_of(settings),
            {"\n0 ", "\n1 ", "the stages are most alike so: pipeline.cut=[",
             "by operations and bytes, since no times were measured", "1f1b, 2 stages, 8 micro-batches"});
  const testing::ScratchFolder folder;
  setenv("BONFIRE_CACHE", folder.path().c_str(), 1);
  setenv("BONFIRE_TUNE", "full", 1);
  const std::string measured = table_of(settings);
  setenv("BONFIRE_TUNE", "off", 1);
  unsetenv("BONFIRE_CACHE");
  expect_in(measured, {" ms ", "by measured times of kernels: "});
}

TEST(StagesTable, ShowsACutThatWasSaid) {
  expect_in(table_of({"model=lenet", "batch_size=32", "mesh.pipeline=3", "pipeline.cut=[conv2, fc2]",
                      "pipeline.schedule=zero_bubble", "pipeline.micro_batches=5"}),
            {"\n1      conv2", "\n2      fc2", "as was said: pipeline.cut=[conv2, fc2]",
             "zero_bubble, 3 stages, 5 micro-batches"});
}

TEST(StagesTable, SaysWhatItCountsWhereRanksShareLayers) {
  const Words settings{"model=lenet", "batch_size=32", "mesh.pipeline=2"};
  const std::string note =
      "of layers that 2 ranks along the tensor axis share, times and memory are all ranks' together";
  EXPECT_EQ(table_of(settings).find(note), std::string::npos);
  Words shared = settings;
  shared.emplace_back("mesh.tensor=2");
  expect_in(table_of(shared), {note});
}

TEST(StagesTable, RefusesWhatCannotBe) {
  EXPECT_ERROR(table_of({"model=lenet"}), ConfigError, "say how many: mesh.pipeline=2");
  EXPECT_ERROR(table_of({"model=lenet", "mesh.pipeline=2", "pipeline.cut=[conv9]"}), ConfigError, "cut names 'conv9'");
}

}  // namespace
}  // namespace bonfire::train::stages_table_test
