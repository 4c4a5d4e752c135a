#include "bonfire/data/cifar.h"

#include <gtest/gtest.h>

#include "bonfire/base/error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::data::cifar_test {
namespace {

using bonfire::testing::ScratchFolder;

// Pixel p of channel c is c × 80 + p % 80.
std::string record(const std::string& labels) {
  std::string bytes = labels;
  for (int channel = 0; channel < 3; ++channel)
    for (int pixel = 0; pixel < 1024; ++pixel) bytes += static_cast<char>(channel * 80 + pixel % 80);
  return bytes;
}

void put_ten(const ScratchFolder& folder) {
  for (int i = 1; i <= 5; ++i)
    folder.put("data_batch_" + std::to_string(i) + ".bin", record(std::string(1, static_cast<char>(i))));
  folder.put("test_batch.bin", record("\x09") + record(std::string(1, '\0')));
}

std::string message(const ScratchFolder& folder, Split split) {
  try {
    load_cifar(folder.path(), split);
  } catch (const DataError& error) {
    return error.what();
  }
  return "no DataError";
}

TEST(Cifar, ReadsBothSplitsOfTheTenClasses) {
  ScratchFolder folder;
  EXPECT_FALSE(is_cifar(folder.path()));
  put_ten(folder);
  EXPECT_TRUE(is_cifar(folder.path()));
  auto train = load_cifar(folder.path(), Split::train), test = load_cifar(folder.path(), Split::test);
  EXPECT_EQ(train->size(), 5);
  EXPECT_EQ(test->size(), 2);
  EXPECT_EQ(label_of(train->get(4)), 5);
  EXPECT_EQ(label_of(test->get(0)), 9);
  Sample sample = train->get(0);
  EXPECT_EQ(sample.input.shape, (Shape{32, 32, 3}));
  for (size_t pixel : {0U, 81U, 1023U})
    for (size_t channel = 0; channel < 3; ++channel)
      EXPECT_EQ(static_cast<size_t>(sample.input.bytes[pixel * 3 + channel]), channel * 80 + pixel % 80);
}

TEST(Cifar, TakesTheFineLabelsOfTheHundredClasses) {
  ScratchFolder folder;
  folder.put("train.bin", record("\x13\x63"));
  folder.put("test.bin", record("\x01\x02"));
  std::string names;
  for (int i = 0; i < 100; ++i) names += "class" + std::to_string(i) + "\r\n";
  folder.put("fine_label_names.txt", names);
  auto train = load_cifar(folder.path(), Split::train);
  EXPECT_EQ(label_of(train->get(0)), 99);
  EXPECT_EQ(train->class_names().at(99), "class99");
}

TEST(Cifar, DamageIsNamed) {
  ScratchFolder folder;
  EXPECT_NE(message(folder, Split::train).find("data_batch_1.bin"), std::string::npos);
  put_ten(folder);
  folder.put("data_batch_3.bin", record("\x01").substr(0, 3000));
  EXPECT_NE(message(folder, Split::train).find("data_batch_3.bin: 3000 bytes"), std::string::npos);
  folder.put("test_batch.bin", record("\x0a"));
  EXPECT_NE(message(folder, Split::test).find("record 0 has the label 10"), std::string::npos);
  folder.put("test_batch.bin", "");
  EXPECT_NE(message(folder, Split::test).find("test_batch.bin: 0 bytes"), std::string::npos);
}

}  // namespace
}  // namespace bonfire::data::cifar_test
