#include "bonfire/data/idx.h"

#define ZLIB_CONST
#include <zlib.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"

namespace bonfire::data {

namespace fs = std::filesystem;

namespace {

// The bytes of a file, one piece after another, unpacked on the way where the file is gzipped.
class ByteStream {
 public:
  ByteStream(std::span<const std::byte> file, std::string name) : name_(std::move(name)), rest_(file) {
    gzipped_ = starts_gzip_member();
    // 16: expect gzip, not zlib framing. MAX_WBITS: its largest window.
    if (gzipped_ && ::inflateInit2(&inflater_, MAX_WBITS + 16) != Z_OK)
      throw_error<DataError>("[idx] {}: zlib could not be started", name_);
  }
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;
  ~ByteStream() {
    if (gzipped_) ::inflateEnd(&inflater_);
  }

  const std::string& name() const { return name_; }

  // Fills `target` from the front; fewer bytes than it holds only at the end of the stream.
  size_t read(std::span<uint8_t> target) {
    if (gzipped_) return inflate_into(target);
    size_t count = std::min(target.size(), rest_.size());
    std::copy_n(reinterpret_cast<const uint8_t*>(rest_.data()), count, target.data());
    rest_ = rest_.subspan(count);
    return count;
  }

 private:
  static constexpr size_t kPiece = size_t{1} << 30;  // zlib counts in 32 bits

  bool starts_gzip_member() const {
    return rest_.size() >= 2 && rest_[0] == std::byte{0x1F} && rest_[1] == std::byte{0x8B};
  }

  size_t inflate_into(std::span<uint8_t> target) {
    size_t done = 0;
    while (done < target.size() && !finished_) {
      auto available = static_cast<uInt>(std::min(rest_.size(), kPiece));
      auto room = static_cast<uInt>(std::min(target.size() - done, kPiece));
      inflater_.next_in = reinterpret_cast<const Bytef*>(rest_.data());
      inflater_.avail_in = available;
      inflater_.next_out = target.data() + done;
      inflater_.avail_out = room;
      int status = ::inflate(&inflater_, Z_NO_FLUSH);
      rest_ = rest_.subspan(available - inflater_.avail_in);
      done += room - inflater_.avail_out;
      if (status == Z_STREAM_END)
        next_member();
      else if (status == Z_BUF_ERROR)  // no progress: room there was, so input was lacking
        throw_error<DataError>("[idx] {}: the gzip stream ends too early; the file is truncated", name_);
      else if (status != Z_OK)
        throw_error<DataError>("[idx] {}: damaged gzip data ({})", name_,
                               inflater_.msg != nullptr ? inflater_.msg : ::zError(status));
    }
    return done;
  }

  void next_member() {
    finished_ = rest_.empty();
    if (!finished_ && (!starts_gzip_member() || ::inflateReset(&inflater_) != Z_OK))
      throw_error<DataError>("[idx] {}: {} bytes after the end of the gzip stream that are not gzip", name_,
                             rest_.size());
  }

  std::string name_;
  std::span<const std::byte> rest_;  // not consumed yet
  z_stream inflater_{};
  bool gzipped_ = false;
  bool finished_ = false;  // the last gzip member has ended and its checksum was right
};

uint32_t read_big_endian(ByteStream& stream) {
  uint8_t bytes[4];
  if (stream.read(bytes) != sizeof bytes)
    throw_error<DataError>("[idx] {}: the file ends inside its header; it is truncated", stream.name());
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]};
}

Shape read_header(ByteStream& stream) {
  constexpr uint32_t kVector = 0x0801, kImages = 0x0803;  // 08: unsigned bytes; then the rank
  uint32_t magic = read_big_endian(stream);
  if (magic != kVector && magic != kImages)
    throw_error<DataError>(
        "[idx] {}: magic number {:#010x}, expected {:#010x} (bytes, rank 1) or {:#010x} (bytes, rank 3)", stream.name(),
        magic, kVector, kImages);
  Shape shape;
  for (uint32_t axis = 0; axis < (magic & 0xFF); ++axis) shape.push_back(read_big_endian(stream));
  return shape;
}

int64_t checked_count(const Shape& shape, const std::string& name) {
  int64_t count = 1;
  for (int64_t extent : shape.extents())
    if (extent > 0 && __builtin_mul_overflow(count, extent, &count))
      throw_error<DataError>("[idx] {}: the header's shape {} is larger than any memory", name, to_string(shape));
  return shape.count();
}

IdxArray read_rank(const fs::path& path, int rank) {
  IdxArray array = read_idx(path);
  if (array.shape.rank() != rank)
    throw_error<DataError>("[mnist] {}: shape {}, expected {} dimension{}", path.string(), to_string(array.shape), rank,
                           rank == 1 ? "" : "s");
  return array;
}

fs::path find_file(const fs::path& folder, const std::string& name) {
  for (const fs::path& candidate : {folder / name, folder / (name + ".gz")})
    if (base::exists(candidate)) return candidate;
  throw_error<DataError>("[mnist] neither {0} nor {0}.gz is in the folder '{1}'{2}", name, folder.string(),
                         base::is_folder(folder) ? "" : ", which is not a folder");
}

}  // namespace

IdxArray read_idx(const fs::path& path) {
  base::MappedFile file(path);
  return parse_idx(file.bytes(), path.string());
}

IdxArray parse_idx(std::span<const std::byte> file, const std::string& name) {
  ByteStream stream(file, name);
  IdxArray array{.shape = read_header(stream), .data = {}};
  auto promised = static_cast<size_t>(checked_count(array.shape, stream.name()));  // bytes
  // Doubling with what arrives, not reserving what is promised.
  for (size_t held = 0; held < promised;) {
    array.data.resize(std::min(promised, std::max(2 * held, size_t{1} << 16)));
    size_t count = stream.read(std::span(array.data).subspan(held));
    held += count;
    if (held < array.data.size())
      throw_error<DataError>("[idx] {}: the header says {} ({} bytes), the file holds {}; it is truncated or damaged",
                             stream.name(), to_string(array.shape), promised, held);
  }
  uint8_t surplus;
  if (stream.read({&surplus, 1}) != 0)  // reading to the end also checks gzip's checksum
    throw_error<DataError>("[idx] {}: more data after the {} bytes of shape {}", stream.name(), promised,
                           to_string(array.shape));
  return array;
}

std::vector<fs::path> mnist_files(const fs::path& folder, Split split) {
  std::string prefix = split == Split::train ? "train" : "t10k";
  return {find_file(folder, prefix + "-images-idx3-ubyte"), find_file(folder, prefix + "-labels-idx1-ubyte")};
}

std::shared_ptr<StoredImages> load_mnist(const fs::path& folder, Split split) {
  std::vector<fs::path> files = mnist_files(folder, split);
  const fs::path &image_path = files[0], &label_path = files[1];
  IdxArray images = read_rank(image_path, 3), labels = read_rank(label_path, 1);
  if (images.shape[0] != labels.shape[0])
    throw_error<DataError>("[mnist] {} has {} images, {} has {} labels; expected as many", image_path.string(),
                           images.shape[0], label_path.string(), labels.shape[0]);
  return std::make_shared<StoredImages>(Shape{images.shape[1], images.shape[2], 1}, std::move(images.data),
                                        std::move(labels.data));
}

}  // namespace bonfire::data
