#include "bonfire/nn/state_dict.h"

#include <gtest/gtest.h>

#include "bonfire/base/error.h"
#include "bonfire/nn/linear.h"
#include "bonfire/nn/norm.h"
#include "bonfire/nn/sequential.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::nn::state_dict_test {
namespace {

using Names = std::vector<std::string>;

using bonfire::testing::ScratchFolder;
using bonfire::testing::WithoutPrivileges;

Sequential make_net(int64_t classes = 2) {
  return Sequential({Linear({.in = 3, .out = 4}), BatchNorm1d({.channels = 4}), Linear({.in = 4, .out = classes})});
}

std::vector<std::vector<std::byte>> bytes_of(const Module& module) {
  std::vector<std::vector<std::byte>> all;
  for (const auto& [name, variable] : module.state_dict()) all.push_back(variable.save());
  return all;
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const DataError& error) {
    return error.what();
  }
  return "no DataError";
}

TEST(StateDict, SaveAndLoadKeepEveryBit) {
  ScratchFolder folder;
  Sequential net = make_net(), other = make_net();
  net(Tensor::from<float>({1, 2, 3, -4, 5, 6}, {2, 3})).to_vector<float>();  // moves the statistics
  ASSERT_NE(bytes_of(net), bytes_of(other));
  net.save(folder / "net.safetensors");
  LoadReport report = other.load(folder / "net.safetensors");
  EXPECT_TRUE(report.complete());
  EXPECT_EQ(report.loaded, net.state_dict().size());
  EXPECT_EQ(bytes_of(net), bytes_of(other));
}

TEST(StateDict, GoesFromOneModelToAnother) {
  Sequential net = make_net(), other = make_net();
  other.load_state_dict(net.state_dict());
  EXPECT_EQ(bytes_of(net), bytes_of(other));
}

TEST(StateDict, StrictLoadingListsAllThatDoesNotFitAndChangesNothing) {
  Sequential net = make_net(), other = make_net(5);
  other.push_back(BatchNorm1d({.channels = 5, .affine = false}));
  std::vector<std::vector<std::byte>> before = bytes_of(net);
  std::string message = message_of([&] { net.load_state_dict(other.state_dict()); });
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "3 unexpected: 3.running_mean, 3.running_var, 3.num_batches_tracked",
                      message);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "7 of its 12 tensors fit the model's 9, nothing is loaded", message);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                      "2 misshapen: 2.weight is f32 [2, 4], found f32 [5, 4], 2.bias is f32 [2], found f32 [5]",
                      message);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "3 missing: 3.running_mean, 3.running_var, 3.num_batches_tracked",
                      message_of([&] { other.load_state_dict(net.state_dict()); }));
  EXPECT_EQ(bytes_of(net), before);
}

TEST(StateDict, PartialLoadingTakesWhatFitsAndReportsTheRest) {
  ScratchFolder folder;
  Sequential trained = make_net(), tuned = make_net(5);
  trained.save(folder / "trained.safetensors");
  std::vector<std::byte> last = tuned.state_dict().back().variable.save();
  LoadReport report = tuned.load(folder / "trained.safetensors", {.strict = false});
  EXPECT_EQ(report.loaded, 7U);
  EXPECT_EQ(report.missing, Names{});
  EXPECT_EQ(report.misshapen, (Names{"2.weight is f32 [5, 4], found f32 [2, 4]", "2.bias is f32 [5], found f32 [2]"}));
  EXPECT_EQ(tuned.state_dict()[0].variable.save(), trained.state_dict()[0].variable.save());
  EXPECT_EQ(tuned.state_dict().back().variable.save(), last);
  EXPECT_EQ(to_string(report),
            "7 loaded\n  2 misshapen: 2.weight is f32 [5, 4], found f32 [2, 4], 2.bias is f32 [5], found f32 [2]");
}

TEST(StateDict, LongListsAreCutInMessages) {
  LoadReport report;
  for (int i = 0; i < 23; ++i) report.missing.push_back("p" + std::to_string(i));
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "23 missing: p0, p1", to_string(report));
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "p19, and 3 more", to_string(report));
}

class Tied : public Module {
 public:
  Tied() : Module("Tied") {}
  Linear encoder = register_module("encoder", Linear({.in = 2, .out = 2, .bias = false}));
  Linear decoder = register_module("decoder", Linear(encoder.weight, {}));
};

TEST(StateDict, OneOfTheNamesOfATiedParameterIsEnough) {
  const float values[] = {1, 2, 3, 4};
  for (const char* name : {"encoder.weight", "decoder.weight"}) {
    Tied tied;
    const TensorEntry entry{name, DType::f32, {2, 2}, std::as_bytes(std::span(values))};
    EXPECT_TRUE(load_state_dict(tied.state_dict(), {&entry, 1}, "memory").complete());
    EXPECT_EQ(tied.decoder.weight.value().to_vector<float>(), (std::vector<float>{1, 2, 3, 4}));
  }
}

TEST(StateDict, ATiedParameterIsWrittenUnderEachName) {
  ScratchFolder folder;
  Tied().save(folder / "tied.safetensors");
  SafetensorsFile file = SafetensorsFile::open(folder / "tied.safetensors");
  EXPECT_NE(file.find("encoder.weight"), nullptr);
  EXPECT_NE(file.find("decoder.weight"), nullptr);
}

TEST(StateDict, ALeadingModuleInEveryNameIsPassedOver) {
  Sequential net = make_net(), other = make_net();
  StateDict wrapped;
  for (const auto& [name, variable] : net.state_dict()) wrapped.push_back({"module." + name, variable});
  EXPECT_TRUE(other.load_state_dict(wrapped).complete());
  EXPECT_EQ(bytes_of(net), bytes_of(other));
}

TEST(StateDict, FloatsOfAnotherTypeAreConvertedAndIntegersAreNot) {
  Linear fc({.in = 2, .out = 1, .bias = false});
  const double wide[] = {1.5, -2.25};
  const bfloat16 narrow[] = {3.0F, 0.5F};
  const int32_t whole[] = {1, 2};
  const TensorEntry f64{"weight", DType::f64, {1, 2}, std::as_bytes(std::span(wide))};
  const TensorEntry bf16{"weight", DType::bf16, {1, 2}, std::as_bytes(std::span(narrow))};
  const TensorEntry i32{"weight", DType::i32, {1, 2}, std::as_bytes(std::span(whole))};
  load_state_dict(fc.state_dict(), {&f64, 1}, "memory");
  EXPECT_EQ(fc.weight.value().to_vector<float>(), (std::vector<float>{1.5, -2.25}));
  load_state_dict(fc.state_dict(), {&bf16, 1}, "memory");
  EXPECT_EQ(fc.weight.value().to_vector<float>(), (std::vector<float>{3, 0.5}));
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "weight is f32 [1, 2], found i32 [1, 2]", message_of([&] {
                        load_state_dict(fc.state_dict(), {&i32, 1}, "memory");
                      }));
}

TEST(StateDict, ASaveThatFailsKeepsTheOldFile) {
  ScratchFolder folder;
  std::filesystem::path file = folder / "net.safetensors";
  make_net().save(file);
  std::string before = folder.get("net.safetensors");
  std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  {
    WithoutPrivileges nobody;
    EXPECT_THROW(make_net().save(file), DataError);
  }
  std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_all);
  EXPECT_EQ(folder.get("net.safetensors"), before);
  EXPECT_EQ(folder.count(), 1U);
}

}  // namespace
}  // namespace bonfire::nn::state_dict_test
