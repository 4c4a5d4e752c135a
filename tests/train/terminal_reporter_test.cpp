#include <gtest/gtest.h>

#include "bonfire/train/reporter.h"

namespace bonfire::train::terminal_reporter_test {
namespace {

TEST(WhatToTryNext, FitsTheRun) {
  auto next = [](const std::string& model, const std::string& data, const std::string& unit) {
    return what_to_try_next({.folder = "runs/7", .model = model, .data = data, .place = "cpu", .unit = unit});
  };
  auto expect = [](const std::string& found, const std::string& part) {
    EXPECT_NE(found.find(part), std::string::npos) << found;
  };
  expect(next("mnist_cnn", "generated glyphs", "images"), "model=resnet18_small");
  expect(next("resnet18_small", "generated glyphs", "images"),
         "model=resnet18_small data=FOLDER, with pictures of yours");
  expect(next("resnet18", "photos", "images"), "bonfire predict runs/7 IMAGE");
  expect(next("bert_mini", "generated sentences", "sequences"),
         "bonfire train runs/7/config.yaml data=FOLDER, with text");
  expect(next("bert_mini", "books", "sequences"), "bonfire predict runs/7 \"a sentence with [MASK] in it\"");
}

}  // namespace
}  // namespace bonfire::train::terminal_reporter_test
