#pragma once
// Reads all of a data set, and names everything in it that is bad.

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "bonfire/data/source.h"

namespace bonfire::data {

struct CheckReport {
  SourceKind kind = SourceKind::mnist;
  int64_t train_samples = 0, test_samples = 0;  // that could be counted; of a text: lines
  std::vector<std::string> faults;              // one a file, record, picture, line or label, with its name
  std::string passed_over;                      // pictures of formats that are not read, in words; empty: none
};

// DataError when there is no data set at all. Pictures are decoded, checksums compared, labels looked at.
// `classes`: how many there are, where that is not what such data has by itself.
CheckReport check_data(const std::filesystem::path& folder, std::optional<int64_t> classes = {});

}  // namespace bonfire::data
