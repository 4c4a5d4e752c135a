#include "bonfire/nn/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/base/private_file.h"
#include "bonfire/nn/weights_checksum.h"

namespace bonfire::nn {

static_assert(std::endian::native == std::endian::little, "tensor data is mapped and written as it is in memory");

namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr std::string_view kMetadataKey = "__metadata__";

struct TypeName {
  DType dtype;
  std::string_view name;
};
// In the order in which the reference implementation lays out data: wide types first, so that each is aligned.
constexpr TypeName kTypeNames[] = {{DType::i64, "I64"}, {DType::f64, "F64"},     {DType::f32, "F32"},
                                   {DType::i32, "I32"}, {DType::bf16, "BF16"},   {DType::f16, "F16"},
                                   {DType::u8, "U8"},   {DType::boolean, "BOOL"}};

const TypeName* type_name(DType dtype) { return std::ranges::find(kTypeNames, dtype, &TypeName::dtype); }

// Text from a file inside a message: short and printable, whatever the file holds.
std::string printable(std::string_view text) {
  size_t length = std::min<size_t>(text.size(), 160);
  while (length > 0 && length < text.size() && (text[length] & 0xC0) == 0x80) --length;  // no half of a character
  std::string shown(text.substr(0, length));
  for (char& c : shown)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  return "'" + shown + (length < text.size() ? "...'" : "'");
}

// Extents of 0 are left out of the product, so that no product of some of the extents (a stride) overflows either.
std::optional<uint64_t> checked_bytes(const Shape& shape, DType dtype) {
  int64_t bytes = static_cast<int64_t>(size_of(dtype));
  bool empty = false;
  for (int64_t extent : shape.extents()) {
    empty = empty || extent == 0;
    if (extent < 0 || (extent > 0 && __builtin_mul_overflow(bytes, extent, &bytes))) return std::nullopt;
  }
  return empty ? 0 : static_cast<uint64_t>(bytes);
}

struct HeaderEntry {
  TensorEntry tensor;
  uint64_t begin = 0, end = 0;  // bytes, from the start of the data
};

// Receives the header's JSON piece by piece. The grammar is three levels deep and known beforehand, so a place in it is
// the whole state: nothing is built for what does not belong, and nesting is refused where it starts.
class HeaderReader {
 public:
  explicit HeaderReader(const std::string& source) : source_(source) {}

  std::vector<HeaderEntry> entries;
  SafetensorsMetadata metadata;

  bool null() { unexpected("null"); }
  bool boolean(bool) { unexpected("a boolean"); }
  bool number_integer(int64_t value) { unexpected(fmt::format("the negative number {}", value)); }
  bool number_float(double, const std::string& text) { unexpected("the number " + printable(text)); }
  bool binary(const std::vector<uint8_t>&) { unexpected("binary data"); }
  bool number_unsigned(uint64_t value) {
    if (place_ == Place::shape) return add_extent(value);
    if (place_ != Place::offsets) unexpected(fmt::format("the number {}", value));
    offsets_.push_back(value);
    if (offsets_.size() > 2) fail_here("data_offsets has more than 2 numbers");
    return true;
  }

  bool string(const std::string& text) {
    if (place_ == Place::metadata)
      metadata[metadata_key_] = text;
    else if (place_ == Place::tensor && field_ == "dtype")
      set_dtype(text);
    else
      unexpected("the string " + printable(text));
    return true;
  }

  bool key(const std::string& name) {
    if (place_ == Place::metadata) {
      if (metadata.contains(name)) fail_here("the key " + printable(name) + " appears twice");
      metadata_key_ = name;
    } else if (place_ == Place::tensor) {
      begin_field(name);
    } else {
      name_ = name;
    }
    return true;
  }

  bool start_object(size_t) {
    if (place_ == Place::start) {
      place_ = Place::top;
    } else if (place_ == Place::top && name_ == kMetadataKey) {
      if (std::exchange(has_metadata_, true)) fail("the header has two __metadata__ objects, expected one at most");
      place_ = Place::metadata;
    } else if (place_ == Place::top) {
      place_ = Place::tensor;
      entries.push_back({.tensor = {.name = name_, .shape = {}, .bytes = {}}});
      has_dtype_ = has_shape_ = has_offsets_ = false;
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool end_object() {
    if (place_ == Place::tensor)
      for (auto [there, field] :
           {std::pair{has_dtype_, "dtype"}, {has_shape_, "shape"}, {has_offsets_, "data_offsets"}})
        if (!there) fail_here(fmt::format("{} is missing", field));
    place_ = place_ == Place::top ? Place::end : Place::top;
    return true;
  }

  bool start_array(size_t) {
    if (place_ == Place::tensor && field_ == "shape")
      place_ = Place::shape;
    else if (place_ == Place::tensor && field_ == "data_offsets")
      place_ = Place::offsets;
    else
      unexpected("an array");
    offsets_.clear();
    return true;
  }

  bool end_array() {
    if (place_ == Place::offsets) {
      if (offsets_.size() != 2) fail_here(fmt::format("data_offsets has {} numbers, expected 2", offsets_.size()));
      entries.back().begin = offsets_[0];
      entries.back().end = offsets_[1];
    }
    place_ = Place::tensor;
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& error) {
    std::string_view reason = error.what();  // "[json.exception...] parse error at line 1, column 3: ..."
    fail("the header is not valid JSON: " + printable(reason.substr(reason.find("] ") + 2)));
  }

 private:
  enum class Place { start, top, metadata, tensor, shape, offsets, end };

  bool add_extent(uint64_t extent) {
    Shape& shape = entries.back().tensor.shape;
    if (shape.rank() == Shape::kMaxRank) fail_here(fmt::format("more than {} dimensions", Shape::kMaxRank));
    if (extent > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      fail_here(fmt::format("extent {} is too large", extent));
    shape.push_back(static_cast<int64_t>(extent));
    return true;
  }

  void set_dtype(std::string_view text) {
    const TypeName* found = std::ranges::find(kTypeNames, text, &TypeName::name);
    if (found == std::end(kTypeNames))
      fail_here("unknown dtype " + printable(text) + ", expected one of F64, F32, BF16, F16, I64, I32, U8, BOOL");
    entries.back().tensor.dtype = found->dtype;
  }

  void begin_field(const std::string& name) {
    bool* seen = name == "dtype"          ? &has_dtype_
                 : name == "shape"        ? &has_shape_
                 : name == "data_offsets" ? &has_offsets_
                                          : nullptr;
    if (seen == nullptr) fail_here("unknown field " + printable(name) + ", expected dtype, shape and data_offsets");
    if (std::exchange(*seen, true)) fail_here("the field " + printable(name) + " appears twice");
    field_ = name;
  }

  [[noreturn]] void unexpected(std::string_view found) const {
    switch (place_) {
      case Place::top: fail(fmt::format("{} is {}, expected an object", printable(name_), found));
      case Place::metadata: fail_here(fmt::format("{} is {}, expected a string", printable(metadata_key_), found));
      case Place::tensor:
        fail_here(fmt::format("{} is {}, expected {}", field_, found, field_ == "dtype" ? "a string" : "an array"));
      case Place::shape: fail_here(fmt::format("shape has {}, expected integers from 0", found));
      case Place::offsets: fail_here(fmt::format("data_offsets has {}, expected integers from 0", found));
      case Place::start:
      case Place::end: break;
    }
    fail(fmt::format("the header is {}, expected an object", found));
  }
  [[noreturn]] void fail_here(std::string_view what) const {
    fail(fmt::format("{}: {}", place_ == Place::metadata ? "__metadata__" : "tensor " + printable(name_), what));
  }
  [[noreturn]] void fail(std::string_view what) const { throw_error<DataError>("[safetensors] {}: {}", source_, what); }

  const std::string& source_;
  Place place_ = Place::start;
  std::string name_, field_, metadata_key_;  // the keys that lead to this place
  std::vector<uint64_t> offsets_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false, has_metadata_ = false;
};

struct Parts {
  std::string_view header;
  std::span<const std::byte> data;
};

Parts split(std::span<const std::byte> file, const std::string& source) {
  if (file.size() < kLengthBytes)
    throw_error<DataError>("[safetensors] {}: {} bytes, expected at least {}; the file is truncated or empty", source,
                           file.size(), kLengthBytes);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kMaxHeaderBytes)
    throw_error<DataError>("[safetensors] {}: a header of {} bytes, expected at most {}; not a safetensors file?",
                           source, length, kMaxHeaderBytes);
  if (length > file.size() - kLengthBytes)
    throw_error<DataError>("[safetensors] {}: a header of {} bytes, but only {} follow; the file is truncated", source,
                           length, file.size() - kLengthBytes);
  std::string_view header(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
  // The JSON parser would skip a byte-order mark and take a zero byte for the end.
  if (!header.starts_with('{'))
    throw_error<DataError>("[safetensors] {}: the header does not begin with '{{'; not a safetensors file?", source);
  if (size_t zero = header.find('\0'); zero != header.npos)
    throw_error<DataError>("[safetensors] {}: the header is not valid JSON: a zero byte at its byte {}", source, zero);
  return {header, file.subspan(kLengthBytes + length)};
}

std::string describe(const HeaderEntry& entry, const std::string& source) {
  return fmt::format("[safetensors] {}: tensor {}: data_offsets [{}, {}]", source, printable(entry.tensor.name),
                     entry.begin, entry.end);
}

// Gives one entry its bytes, if its own numbers agree with each other and with the size of the data.
void attach(HeaderEntry& entry, std::span<const std::byte> data, const std::string& source) {
  TensorEntry& tensor = entry.tensor;
  std::string_view type = type_name(tensor.dtype)->name;
  std::optional<uint64_t> needed = checked_bytes(tensor.shape, tensor.dtype);
  if (!needed)
    throw_error<DataError>("[safetensors] {}: tensor {}: shape {} of {} is larger than any memory", source,
                           printable(tensor.name), to_string(tensor.shape), type);
  if (entry.begin > entry.end) throw_error<DataError>("{} run backwards", describe(entry, source));
  if (entry.end > data.size())
    throw_error<DataError>("{} end beyond the {} bytes of data; the file is truncated or damaged",
                           describe(entry, source), data.size());
  if (entry.end - entry.begin != *needed)
    throw_error<DataError>("{} hold {} bytes, shape {} of {} needs {}", describe(entry, source),
                           entry.end - entry.begin, to_string(tensor.shape), type, *needed);
  tensor.bytes = data.subspan(entry.begin, *needed);
}

// Reading a C++ bool that is neither is undefined behaviour.
void require_booleans(const TensorEntry& tensor, const std::string& source) {
  if (tensor.dtype != DType::boolean) return;
  auto odd = std::ranges::find_if(tensor.bytes, [](std::byte value) { return value > std::byte{1}; });
  if (odd != tensor.bytes.end())
    throw_error<DataError>("[safetensors] {}: tensor {}: element {} of a BOOL tensor is {}, expected 0 or 1", source,
                           printable(tensor.name), odd - tensor.bytes.begin(), std::to_integer<int>(*odd));
}

// The tensors must fill the data exactly: bytes that belong to two of them, or to none, could hide anything.
void require_no_holes(std::span<const HeaderEntry> sorted, size_t data_bytes, const std::string& source) {
  uint64_t filled = 0;  // bytes
  for (const HeaderEntry& entry : sorted) {
    if (entry.begin < filled)
      throw_error<DataError>("{} overlap another tensor, which ends at {}", describe(entry, source), filled);
    if (entry.begin > filled)
      throw_error<DataError>("{} leave a hole: the data before ends at {}", describe(entry, source), filled);
    filled = entry.end;
  }
  if (filled != data_bytes)
    throw_error<DataError>("[safetensors] {}: {} bytes of data, the tensors account for {}", source, data_bytes,
                           filled);
}

void require_writable(const TensorEntry& entry, const std::string& target) {
  if (entry.name == kMetadataKey)
    throw_error<DataError>("[safetensors] {}: a tensor cannot be named __metadata__; rename it", target);
  std::optional<uint64_t> needed = checked_bytes(entry.shape, entry.dtype);
  if (!needed || *needed != entry.bytes.size())
    throw_error<DataError>("[safetensors] {}: tensor {} has {} bytes, which does not fit shape {} of {}", target,
                           printable(entry.name), entry.bytes.size(), to_string(entry.shape), name_of(entry.dtype));
}

std::string json_string(const std::string& text, const std::string& target) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    throw_error<DataError>("[safetensors] {}: {} is not valid UTF-8", target, printable(text));
  }
}

// Length, JSON and padding: the data after it starts at a multiple of 8 bytes.
std::string make_header(std::span<const TensorEntry* const> ordered, const SafetensorsMetadata& metadata,
                        const std::string& target) {
  std::vector<std::string> members;
  if (!metadata.empty()) {
    std::vector<std::string> texts;
    for (const auto& [key, text] : metadata)
      texts.push_back(json_string(key, target) + ":" + json_string(text, target));
    members.push_back(fmt::format(R"("{}":{{{}}})", kMetadataKey, fmt::join(texts, ",")));
  }
  uint64_t offset = 0;
  for (const TensorEntry* entry : ordered) {
    uint64_t end = offset + entry->bytes.size();
    members.push_back(fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                                  json_string(entry->name, target), type_name(entry->dtype)->name,
                                  fmt::join(entry->shape.extents(), ","), offset, end));
    offset = end;
  }
  std::string header(kLengthBytes, '\0');
  header += fmt::format("{{{}}}", fmt::join(members, ","));
  header.resize((header.size() + 7) / 8 * 8, ' ');
  uint64_t length = header.size() - kLengthBytes;
  if (length > kMaxHeaderBytes)
    throw_error<DataError>("[safetensors] {}: a header of {} bytes, the format allows {}; write several files", target,
                           length, kMaxHeaderBytes);
  std::memcpy(header.data(), &length, kLengthBytes);
  return header;
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  base::MappedFile mapped(path);
  SafetensorsFile file = from_bytes(mapped.bytes(), path.string());
  file.mapped_ = std::move(mapped);
  return file;
}

SafetensorsFile SafetensorsFile::from_bytes(std::span<const std::byte> bytes, const std::string& source) {
  Parts parts = split(bytes, source);
  HeaderReader reader(source);
  nlohmann::json::sax_parse(parts.header, &reader);

  for (HeaderEntry& entry : reader.entries) attach(entry, parts.data, source);
  std::ranges::sort(reader.entries, {}, [](const HeaderEntry& entry) { return std::pair(entry.begin, entry.end); });
  require_no_holes(reader.entries, parts.data.size(), source);

  SafetensorsFile file;
  file.metadata_ = std::move(reader.metadata);
  for (HeaderEntry& entry : reader.entries) {
    require_booleans(entry.tensor, source);
    file.by_name_.push_back(file.entries_.size());
    file.entries_.push_back(std::move(entry.tensor));
  }
  auto name = [&file](size_t index) -> const std::string& { return file.entries_[index].name; };
  std::ranges::sort(file.by_name_, {}, name);
  auto twice = std::ranges::adjacent_find(file.by_name_, {}, name);
  if (twice != file.by_name_.end())
    throw_error<DataError>("[safetensors] {}: the name {} appears twice", source, printable(name(*twice)));
  require_checksum(file.entries_, file.metadata_, source);
  return file;
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  auto name_of_index = [this](size_t index) -> std::string_view { return entries_[index].name; };
  auto found = std::ranges::lower_bound(by_name_, name, {}, name_of_index);
  return found != by_name_.end() && entries_[*found].name == name ? &entries_[*found] : nullptr;
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorEntry> entries,
                       const SafetensorsMetadata& metadata) {
  std::string target = path.string();
  std::vector<const TensorEntry*> ordered;
  for (const TensorEntry& entry : entries) {
    require_writable(entry, target);
    ordered.push_back(&entry);
  }
  std::ranges::sort(ordered, {}, &TensorEntry::name);
  auto twice = std::ranges::adjacent_find(ordered, {}, &TensorEntry::name);
  if (twice != ordered.end())
    throw_error<DataError>("[safetensors] {}: two tensors are named {}", target, printable((*twice)->name));
  std::ranges::stable_sort(ordered, {}, [](const TensorEntry* entry) { return type_name(entry->dtype); });

  std::string header = make_header(ordered, metadata, target);
  std::vector<std::span<const std::byte>> chunks{std::as_bytes(std::span(header))};
  for (const TensorEntry* entry : ordered) chunks.push_back(entry->bytes);
  base::write_private_file(path, chunks);
}

}  // namespace bonfire::nn
