#pragma once
// IDX files, the format of MNIST and Fashion-MNIST: bytes of rank 1 (labels) or 3 (images), plain or gzipped.
//
//   std::shared_ptr<data::StoredImages> train = data::load_mnist("data/mnist", data::Split::train);
//
// A file that is damaged, cut short or not what it claims is a DataError with the file's name. Memory grows with the
// bytes that are really there, whatever the header promises.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "bonfire/data/stored_images.h"

namespace bonfire::data {

struct IdxArray {
  Shape shape;                // [N] or [N, H, W]
  std::vector<uint8_t> data;  // row-major
};

IdxArray read_idx(const std::filesystem::path& path);
IdxArray parse_idx(std::span<const std::byte> file, const std::string& name);  // of the file's bytes

enum class Split : uint8_t { train, test };

inline constexpr int64_t kMnistClasses = 10;  // of Fashion-MNIST too

// From the folder's train-images-idx3-ubyte and train-labels-idx1-ubyte, or t10k-… for the test split; where there is
// no such file, the one with .gz after its name. DataError saying which files were looked for when there is neither.
std::shared_ptr<StoredImages> load_mnist(const std::filesystem::path& folder, Split split);

// The two files of a split, images first, as load_mnist finds them.
std::vector<std::filesystem::path> mnist_files(const std::filesystem::path& folder, Split split);

}  // namespace bonfire::data
