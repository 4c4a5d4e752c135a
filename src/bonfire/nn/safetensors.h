#pragma once
// The safetensors format: weights on disk that PyTorch, NumPy and others read and write.
//
//   8 bytes   length of the header, little-endian
//   header    JSON: {"__metadata__": {"key": "text"}, "NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0,
//   24]}} data      row-major, little-endian; the tensors fill it without holes, offsets count from its start
//
//   nn::write_safetensors("best.safetensors", entries, {{"format", "pt"}});
//   auto file = nn::SafetensorsFile::open("best.safetensors");
//   if (const nn::TensorEntry* weight = file.find("fc.weight")) use(weight->shape, weight->bytes);

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bonfire/base/file.h"
#include "bonfire/graph/slice.h"
#include "bonfire/tensor/dtype.h"
#include "bonfire/tensor/shape.h"

namespace bonfire::nn {

struct TensorEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::span<const std::byte> bytes;  // [shape] row-major; not owned, and in a file from elsewhere perhaps not aligned
  // What of the named tensor this is; null: all of it. A file does not say so: a checkpoint's manifest does.
  std::shared_ptr<const Slice> slice = {};

  const Shape& whole() const { return slice == nullptr ? shape : slice->whole(); }
};

using SafetensorsMetadata = std::map<std::string, std::string>;

// A checked file: what entries() holds can be relied on. Each span has exactly the bytes of its shape, the product of
// the extents (those of 0 left out) and of the element size fits int64, booleans are 0 or 1, names differ. Anything
// else in a file is a DataError that names the file, the tensor and what is wrong with it.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::filesystem::path& path);  // mapped: tensors are loaded when they are read

  // The same from memory, which the caller keeps; `source` stands for the file name in messages.
  static SafetensorsFile from_bytes(std::span<const std::byte> bytes, const std::string& source);

  std::span<const TensorEntry> entries() const { return entries_; }  // in the order of their data
  const TensorEntry* find(std::string_view name) const;              // null when there is none
  const SafetensorsMetadata& metadata() const { return metadata_; }

 private:
  base::MappedFile mapped_;
  std::vector<TensorEntry> entries_;
  std::vector<size_t> by_name_;  // indices into entries_
  SafetensorsMetadata metadata_;
};

// Writes atomically (base::write_file_atomically), the data ordered and aligned as the reference implementation does:
// wide types first, then by name. The same entries and metadata give the same bytes. DataError for entries that could
// not be read back: names that repeat, are no UTF-8 or "__metadata__", bytes that do not fit the shape.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorEntry> entries,
                       const SafetensorsMetadata& metadata = {});

}  // namespace bonfire::nn
