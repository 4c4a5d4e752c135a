#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <set>

#include "bonfire/train/report/reporter.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/digits.h"
#include "tests/train/terminal.h"

namespace bonfire::train::terminal_reporter_test {
namespace {

using bonfire::testing::ScratchFolder;
using bonfire::testing::Terminal;
using Words = std::vector<std::string>;

// The line as it was drawn, again and again.
Words frames_of(const std::string& output) {
  const std::string anew = "\r\033[K";
  Words frames;
  for (size_t at = output.find(anew); at != std::string::npos; at = output.find(anew, at)) {
    at += anew.size();
    std::string text = output.substr(at, output.find_first_of("\r\n", at) - at);
    const bool is_line = output.substr(at + text.size(), 2) == "\r\n";  // it stays there
    if (!is_line && !text.empty()) frames.push_back(text);
  }
  return frames;
}

Words frames(const ScratchFolder& folder, unsigned short columns, const Words& more = {}) {
  Words arguments{"train",    data_of_digits(folder), "place=cpu",  "output=" + (folder / "runs").string(), "limit=320",
                  "epochs=2", "batch_size=32",        "model=lenet"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return frames_of(Terminal(arguments, columns).output());
}

Words those_with(const Words& frames, const std::string& text) {
  Words found;
  std::copy_if(frames.begin(), frames.end(), std::back_inserter(found),
               [&](const std::string& frame) { return frame.find(text) != std::string::npos; });
  return found;
}

int64_t count(const std::string& text, const std::string& part) {
  int64_t times = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

TEST(Terminal, ShowsCompilingTrainingEvaluatingAndSaving) {
  ScratchFolder folder;
  const Words drawn = frames(folder, 100);
  for (const char* doing : {"epoch 1/2  compiling the first step", "evaluating", "epoch 1/2  saving", "epoch 2/2  "})
    EXPECT_FALSE(those_with(drawn, doing).empty()) << doing;
  for (const std::string& frame : those_with(drawn, "saving"))
    EXPECT_NE(frame.find("ETA 0:0"), std::string::npos) << frame;
}

TEST(Terminal, TheLineFitsAndTheTimeLeftIsTheLastToGo) {
  ScratchFolder folder;
  for (unsigned short width : {120, 45, 24, 11, 8}) {
    const Words drawn = frames(folder, width);
    EXPECT_FALSE(drawn.empty());
    for (const std::string& frame : drawn) {
      auto columns = std::count_if(frame.begin(), frame.end(),
                                   [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80; });
      EXPECT_LE(columns, width) << frame;
    }
    EXPECT_FALSE(those_with(drawn, "ETA 0:0").empty()) << width;  // when 20 of 20 steps are done it is known
    EXPECT_EQ(those_with(drawn, "saving").empty(), width < 18) << width;
  }
}

// Of every frame: twenty characters are as full as the numbers beside them say.
void expect_bars_to_count(const Words& drawn, const std::string& head) {
  const std::regex counted(head + "((?:━|─)+)  ([0-9,]+)/([0-9,]+).*");
  int64_t found = 0;
  for (const std::string& frame : drawn) {
    std::smatch parts;
    if (!std::regex_search(frame, parts, counted)) continue;
    ++found;
    EXPECT_EQ(count(parts[1], "━"), 20 * std::stoll(parts[2]) / std::stoll(parts[3])) << frame;
  }
  EXPECT_GT(found, 0);
}

TEST(Terminal, OneBarCountsTheEpochOrTheRun) {
  ScratchFolder folder;
  expect_bars_to_count(frames(folder, 100), "epoch [12]/2  ");
  const Words by_steps = frames(folder, 100, {"steps=17"});
  expect_bars_to_count(by_steps, "steps  ");
  EXPECT_FALSE(those_with(by_steps, "/17").empty());
}

// By its own clock: kernels of a model that is new to it are timed for seconds meanwhile.
TEST(Terminal, TheLineMovesTwiceASecondWhileTheFirstStepIsCompiled) {
  ScratchFolder folder, cache;
  setenv("BONFIRE_CACHE", cache.path().c_str(), 1);
  setenv("BONFIRE_TUNE", "full", 1);
  const Words drawn = frames(folder, 100, {"model=resnet18_small", "image_size=16", "steps=1"});
  unsetenv("BONFIRE_CACHE");
  unsetenv("BONFIRE_TUNE");
  const Words compiling = those_with(drawn, "compiling");
  ASSERT_FALSE(compiling.empty());
  const std::string& last = compiling.back();
  const size_t colon = last.rfind(':');
  const int64_t seconds = std::stoll(last.substr(colon - 1, 1)) * 60 + std::stoll(last.substr(colon + 1));
  fmt::print("{} lines in {} s of compiling\n", compiling.size(), seconds);
  EXPECT_GE(static_cast<int64_t>(compiling.size()), 2 * seconds);
  for (size_t i = 1; i < compiling.size(); ++i) EXPECT_NE(compiling[i], compiling[i - 1]);
}

TEST(WhatToTryNext, FitsTheRun) {
  auto next = [](const std::string& model, const std::string& data) {
    const bool is_text = model == "bert_mini";
    return what_to_try_next({.folder = "runs/7",
                             .model = model,
                             .data = data,
                             .place = "cpu",
                             .predict_hint = is_text ? "\"a sentence with [MASK] in it\"" : "IMAGE",
                             .data_hint = is_text ? "text of yours" : "pictures of yours"});
  };
  auto expect = [](const std::string& found, const std::string& part) {
    EXPECT_NE(found.find(part), std::string::npos) << found;
  };
  expect(next("mnist_cnn", "generated glyphs"), "model=resnet18_small");
  expect(next("resnet18_small", "generated glyphs"), "train runs/7/config.yaml data=FOLDER, with pictures of yours");
  expect(next("resnet18", "photos"), "bonfire predict runs/7 IMAGE");
  expect(next("bert_mini", "generated sentences"), "bonfire train runs/7/config.yaml data=FOLDER, with text");
  ::setenv("BONFIRE_CALLED_AS", "./bonfire", 1);
  expect(next("resnet18", "photos"), "./bonfire predict runs/7 IMAGE");
  ::unsetenv("BONFIRE_CALLED_AS");
  expect(next("bert_mini", "books"), "bonfire predict runs/7 \"a sentence with [MASK] in it\"");
  EXPECT_EQ(what_to_try_next({.folder = "runs/7", .model = "Net", .data = "the program's data", .place = "cpu"}), "");
}

}  // namespace
}  // namespace bonfire::train::terminal_reporter_test
