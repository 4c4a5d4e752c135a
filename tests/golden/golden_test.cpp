// The generator here and the one in generate.py give the same bits, and the files hold what the tests rely on.
#include "tests/golden/golden.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "bonfire/base/error.h"
#include "bonfire/base/random.h"
#include "tests/support/expect_error.h"

namespace bonfire::golden::golden_test {
namespace {

const std::vector<std::string> kModels{"mnist_cnn",       "lenet",     "tanh_net", "mlp",
                                       "resnet18_small",  "vgg11_bn",  "alexnet",  "two_headed",
                                       "lstm_classifier", "bert_mini", "gpt2"};

uint64_t from_hex(const std::string& text) { return std::stoull(text, nullptr, 16); }

const nlohmann::json& python() {
  static const nlohmann::json json = load_json("generator");
  return json;
}

int64_t count_of(const nlohmann::json& row) { return static_cast<int64_t>(row.at("values").size()); }

// Floats are written as the double they are equal to, so == is a comparison of bits.
template <class Value>
std::vector<Value> values_of(const nlohmann::json& row) {
  return row.at("values").get<std::vector<Value>>();
}

TEST(GoldenGenerator, HasPythonsSeed) { EXPECT_EQ(python().at("seed").get<uint64_t>(), kSeed); }

TEST(GoldenGenerator, HashesNamesAsPythonDoes) {
  for (const nlohmann::json& row : python().at("fnv1a64"))
    EXPECT_EQ(fnv1a64(row.at("text").get<std::string>()), from_hex(row.at("hash"))) << row;
}

TEST(GoldenGenerator, HasPythonsPhiloxWords) {
  for (const nlohmann::json& row : python().at("philox")) {
    RandomBlock block = philox(from_hex(row.at("seed")), from_hex(row.at("stream")), from_hex(row.at("counter")));
    std::vector<uint32_t> words(block.word, block.word + 4);
    EXPECT_EQ(words, row.at("words").get<std::vector<uint32_t>>()) << row;
  }
}

TEST(GoldenGenerator, StartsAnywhereInAStream) {
  for (const nlohmann::json& row : python().at("uniform")) {
    std::string stream = row.at("stream");
    int64_t first = row.at("first");
    std::vector<float> expected = values_of<float>(row);
    EXPECT_EQ(uniform_values(stream, count_of(row), first), expected) << row;
    EXPECT_EQ(uniform_at(kSeed, fnv1a64(stream), first), expected[0]) << row;
  }
}

TEST(GoldenGenerator, FillsParametersOfEveryKindWithPythonsBits) {
  std::set<Kind> seen;
  for (const nlohmann::json& row : python().at("parameters")) {
    Kind kind = kind_from_text(row.at("kind").get<std::string>());
    std::vector<int64_t> shape = row.at("shape");
    std::vector<float> values = parameter_values(row.at("name").get<std::string>(), shape, kind);
    std::vector<float> expected = values_of<float>(row);
    ASSERT_GE(values.size(), expected.size());
    values.resize(expected.size());
    EXPECT_EQ(values, expected) << row;
    seen.insert(kind);
  }
  EXPECT_EQ(seen.size(), 3U);
}

TEST(GoldenGenerator, MakesPythonsBatches) {
  const nlohmann::json &image = python().at("image"), &box = python().at("box"), &gradient = python().at("gradient");
  EXPECT_EQ(image_values(image.at("step"), count_of(image)), values_of<float>(image));
  EXPECT_EQ(box_values(box.at("step"), count_of(box)), values_of<float>(box));
  EXPECT_EQ(gradient_values(gradient.at("name").get<std::string>(), gradient.at("step"), count_of(gradient)),
            values_of<float>(gradient));
  const nlohmann::json &label = python().at("label"), &token = python().at("token");
  EXPECT_EQ(label_values(label.at("step"), count_of(label), label.at("classes")), values_of<int64_t>(label));
  EXPECT_EQ(token_values(token.at("step"), count_of(token), token.at("vocabulary")), values_of<int64_t>(token));
}

TEST(GoldenGenerator, KeepsLabelsAndTokensInRange) {
  std::set<int64_t> labels, tokens;
  for (int64_t value : label_values(0, 2000, 10)) labels.insert(value);
  for (int64_t value : token_values(0, 2000, 10)) tokens.insert(value);
  EXPECT_EQ(labels, (std::set<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(tokens, (std::set<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9}));  // 0 stands for padding
}

TEST(GoldenFiles, DescribeEveryModelCompletely) {
  for (const std::string& name : kModels) {
    SCOPED_TRACE(name);
    Model model = load_model(name);
    EXPECT_EQ(model.name, name);
    EXPECT_EQ(model.losses.size(), name == "tanh_net" || name == "gpt2" ? 50U : 5U);
    EXPECT_EQ(model.losses_f64.size(), model.losses.size());
    EXPECT_EQ(model.losses_bf16.size(), model.losses.size());
    int64_t count = 0;
    std::set<std::string> names;
    for (const Parameter& parameter : model.parameters) {
      int64_t size = 1;
      for (int64_t extent : parameter.shape) size *= extent;
      count += size;
      names.insert(parameter.name);
      EXPECT_EQ(parameter.kind == Kind::weight, parameter.shape.size() >= 2) << parameter.name;
    }
    EXPECT_EQ(count, model.parameter_count);
    EXPECT_EQ(names.size(), model.parameters.size());
  }
}

// A comparison at 1e-4 means something only where training moves the loss by more than that.
TEST(GoldenFiles, TrainingMovesTheLossWellBeyondTheTolerance) {
  for (const std::string& name : kModels) {
    nlohmann::json json = load_json(name);
    std::vector<double> losses = json.at("losses_f64"), without = json.at("losses_without_updates");
    double moved = std::abs(losses.back() / without.back() - 1);
    EXPECT_GT(moved, 1e-3) << name;
  }
}

// And it can be met only where rounding moves it by less.
TEST(GoldenFiles, RoundingMovesLossesByLessThanTheTolerance) {
  for (const std::string& name : kModels) {
    nlohmann::json json = load_json(name);
    for (double spread : json.at("loss_spread")) EXPECT_LT(spread, 5e-5) << name;
  }
}

TEST(GoldenFiles, AMissingFileIsNamed) {
  EXPECT_ERROR(load_json("no_such_model"), DataError, "no_such_model.json cannot be read");
}

}  // namespace
}  // namespace bonfire::golden::golden_test
