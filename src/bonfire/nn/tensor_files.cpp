#include "bonfire/nn/tensor_files.h"

#include <set>

#include "bonfire/base/error.h"

namespace bonfire::nn {

TensorFiles TensorFiles::open(const std::filesystem::path& file) {
  TensorFiles files(file.string());
  files.add(file);
  return files;
}

void TensorFiles::add(const std::filesystem::path& file, const std::map<std::string, Slice>& slices) {
  const SafetensorsFile& opened = files_.emplace_back(SafetensorsFile::open(file));
  for (const auto& [name, slice] : slices) {
    const TensorEntry* entry = opened.find(name);
    if (entry == nullptr || entry->shape != slice.local())
      throw_error<DataError>("[checkpoint] {}: {} should be {} there, found {}", file.string(), name, to_string(slice),
                             entry == nullptr ? "nothing of that name" : to_string(entry->shape));
  }
  for (TensorEntry entry : opened.entries()) {
    if (auto found = slices.find(entry.name); found != slices.end())
      entry.slice = std::make_shared<const Slice>(found->second);
    entries_.push_back(std::move(entry));
  }
  if (metadata_.empty()) metadata_ = opened.metadata();
}

std::vector<std::byte> TensorFiles::read(const std::string& name, const Slice& slice) const {
  std::vector<const TensorEntry*> found;
  for (const TensorEntry& entry : entries_)
    if (entry.name == name) found.push_back(&entry);
  if (found.empty()) throw_error<DataError>("[checkpoint] {} has no tensor called {}", source_, name);
  return assemble(found, slice, source_);
}

std::vector<std::byte> assemble(std::span<const TensorEntry* const> entries, const Slice& slice,
                                const std::string& source) {
  const TensorEntry& first = *entries[0];
  const size_t element = size_of(first.dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(slice.count()) * element);
  std::vector<bool> is_there(static_cast<size_t>(slice.count()));  // pieces may overlap
  int64_t count = 0;
  for (const TensorEntry* entry : entries) {
    if (entry->whole() != slice.whole() || entry->dtype != first.dtype)
      throw_error<DataError>("[checkpoint] {}: {} is {} {} there, asked for was {} of {}", source, entry->name,
                             name_of(entry->dtype), to_string(entry->whole()), name_of(first.dtype),
                             to_string(slice.whole()));
    const Slice has = entry->slice == nullptr ? Slice(entry->shape) : *entry->slice;
    const std::vector<Overlap> common = overlaps(has, slice);
    copy_overlaps(common, element, entry->bytes.data(), bytes.data());
    for (const Overlap& part : common)
      for (auto i = static_cast<size_t>(part.to), end = i + static_cast<size_t>(part.count); i < end; ++i) {
        count += is_there[i] ? 0 : 1;
        is_there[i] = true;
      }
  }
  if (count != slice.count())
    throw_error<DataError>("[checkpoint] {}: of {} {} elements of {} are in no file", source, first.name,
                           slice.count() - count, to_string(slice));
  return bytes;
}

std::vector<TensorEntry> whole_entries(const TensorFiles& files, std::deque<std::vector<std::byte>>& memory) {
  std::vector<TensorEntry> all;
  std::set<std::string> done;
  for (const TensorEntry& entry : files.entries()) {
    if (!done.insert(entry.name).second) continue;
    if (entry.slice == nullptr) {
      all.push_back(entry);
      continue;
    }
    memory.push_back(files.read(entry.name, Slice(entry.whole())));
    all.push_back({entry.name, entry.dtype, entry.whole(), memory.back()});
  }
  return all;
}

}  // namespace bonfire::nn
