#include "bonfire/parallel/all_devices.h"

#include <gtest/gtest.h>

namespace bonfire::fleet::all_devices_test {
namespace {

constexpr Device kCpu{DeviceType::cpu, 0}, kFirst{DeviceType::cuda, 0}, kSecond{DeviceType::cuda, 1};

TEST(HintToUseAll, IsTheCommandThatWasTypedWithMoreRanks) {
  EXPECT_EQ(hint_to_use_all(kFirst, {kCpu, kFirst, kSecond}, {"./bonfire", "train", "lr=0.1", "data=my photos"}),
            "this process uses cuda:0, one of 2 GPUs; to use all: ./bonfire train --nproc 2 lr=0.1 'data=my photos'");
  EXPECT_EQ(
      hint_to_use_all(kFirst, {kCpu, kFirst, kSecond}, {"./resnet18", "--lr", "0.1"}),
      "this process uses cuda:0, one of 2 GPUs; to use all: bonfire launch --nproc_per_node 2 ./resnet18 --lr 0.1");
}

TEST(HintToUseAll, IsNotGivenWhereThereIsNothingToGain) {
  EXPECT_EQ(hint_to_use_all(kFirst, {kCpu, kFirst}, {"./program"}), "");
  EXPECT_EQ(hint_to_use_all(kCpu, {kCpu}, {"./program"}), "");
  EXPECT_EQ(hint_to_use_all(kCpu, {kCpu, kFirst, kSecond}, {"./program"}), "");  // as was asked for
}

TEST(CommandWords, AreHowThisProgramWasStarted) {
  const std::vector<std::string> words = command_words();
  ASSERT_FALSE(words.empty());
  EXPECT_NE(words[0].find("test_parallel"), std::string::npos);
  EXPECT_EQ(shell_text({"a", "", "it's"}), "a '' 'it'\\''s'");
}

}  // namespace
}  // namespace bonfire::fleet::all_devices_test
