#pragma once
// What a data set holds, short enough to be stored and compared: how many samples, and a hash over some of them.

#include <cstdint>
#include <string>

#include "bonfire/data/dataset.h"

namespace bonfire::train {

struct DataContent {
  int64_t samples = 0;
  std::string hash = {};  // 32 hexadecimal digits, over 64 samples evenly spread, the first and the last among them
  friend bool operator==(const DataContent&, const DataContent&) = default;
};

// Of the samples as they are stored: before images are decoded or changed.
DataContent content_of(const data::Dataset& dataset);

std::string in_words(const DataContent& content);  // "60000 samples (hash 3f2a…)"

}  // namespace bonfire::train
