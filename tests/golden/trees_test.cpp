// Bonfire's models print the trees of their PyTorch originals.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "bonfire/models/make.h"
#include "bonfire/nn/init.h"
#include "tests/golden/golden.h"

namespace bonfire::golden::trees_test {
namespace {

TEST(GoldenTrees, AreThoseThatPyTorchPrints) {
  nn::init::Skip skip;  // trees need no numbers
  const nlohmann::json trees = load_json("trees").at("trees");
  EXPECT_EQ(trees.size(), 7U);
  for (const nlohmann::json& tree : trees) {
    const auto name = tree.at("model").get<std::string>();
    models::ModelOptions options;
    if (name == "lstm_classifier") options = {.classes = 5, .vocabulary = 1000};
    EXPECT_EQ(nn::to_string(models::make(name, options)),
              fmt::format("{}", fmt::join(tree.at("lines").get<std::vector<std::string>>(), "\n")));
  }
}

}  // namespace
}  // namespace bonfire::golden::trees_test
