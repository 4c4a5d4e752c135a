#pragma once
// TensorFiles: named tensors in safetensors files, some of them perhaps in several files, a slice in each. Whoever
// reads asks for a slice and gets it, whichever way the files are cut.
//
//   nn::TensorFiles files = nn::TensorFiles::open("best.safetensors");
//   std::vector<std::byte> rows = files.read("fc.weight", Slice::part({10, 512}, 0, 1, 2));

#include <deque>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "bonfire/nn/safetensors.h"

namespace bonfire::nn {

class TensorFiles {
 public:
  explicit TensorFiles(std::string source) : source_(std::move(source)) {}  // what messages call all of it
  static TensorFiles open(const std::filesystem::path& file);               // one file of whole tensors

  // `slices` are those of the file's tensors that are not whole. DataError where one does not fit its tensor, or names
  // none.
  void add(const std::filesystem::path& file, const std::map<std::string, Slice>& slices = {});

  const std::string& source() const { return source_; }
  std::span<const TensorEntry> entries() const { return entries_; }  // a tensor may have several
  const SafetensorsMetadata& metadata() const { return metadata_; }  // of the first file that has some

  // Row-major. DataError where there is no such tensor, where files hold another shape of it, or not all of the slice.
  std::vector<std::byte> read(const std::string& name, const Slice& slice) const;

 private:
  std::string source_;
  std::deque<SafetensorsFile> files_;
  std::vector<TensorEntry> entries_;
  SafetensorsMetadata metadata_;
};

// The entries of one tensor as one slice of it: its elements row-major, all of one type. DataError where they do not
// hold all of it; `source` stands for where they are from.
std::vector<std::byte> assemble(std::span<const TensorEntry* const> entries, const Slice& slice,
                                const std::string& source);

// Whole tensors of all entries, those of one piece as they are; `memory` keeps the others.
std::vector<TensorEntry> whole_entries(const TensorFiles& files, std::deque<std::vector<std::byte>>& memory);

}  // namespace bonfire::nn
