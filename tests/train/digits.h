#pragma once
// A small data set for trainers.

#include <filesystem>
#include <fstream>
#include <string>

#include "bonfire/data/glyphs.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::train {

// MNIST's files with the first glyphs: 480 to train on and 41 to test.
inline void put_digits(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  for (data::Split split : {data::Split::train, data::Split::test}) {
    bool is_train = split == data::Split::train;
    data::Glyphs digits({.split = split, .size = is_train ? 480 : 41});
    std::string count = is_train ? std::string("\x01\xe0", 2) : std::string("\0\x29", 2);
    std::string images = std::string("\0\0\x08\x03\0\0", 6) + count + std::string("\0\0\0\x1c\0\0\0\x1c", 8);
    std::string labels = std::string("\0\0\x08\x01\0\0", 6) + count;
    for (int64_t i = 0; i < digits.size(); ++i) {
      data::Sample sample = digits.get(i);
      images.append(reinterpret_cast<const char*>(sample.input.bytes.data()), sample.input.bytes.size());
      labels += static_cast<char>(data::label_of(sample));
    }
    std::string name = is_train ? "train" : "t10k";
    std::ofstream(folder / (name + "-images-idx3-ubyte"), std::ios::binary) << images;
    std::ofstream(folder / (name + "-labels-idx1-ubyte"), std::ios::binary) << labels;
  }
}

// The setting that trains on them; they are put there the first time. Evaluating all generated glyphs takes a test
// longer than to train on a few.
inline std::string data_of_digits(const testing::ScratchFolder& folder) {
  const std::filesystem::path digits = folder / "digits";
  if (!std::filesystem::exists(digits)) put_digits(digits);
  return "data=" + digits.string();
}

}  // namespace bonfire::train
