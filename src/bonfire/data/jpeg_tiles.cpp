#include "bonfire/data/jpeg_tiles.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "bonfire/data/jpeg_errors.h"

namespace bonfire::data {

namespace {

// --- writing ---------------------------------------------------------------------------------------------------------

int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Of a row of `across` units. Tiles of 64 pixels were the best of 16 to 512 (bench_data --case records): smaller ones
// leave out little more, and each costs some five bytes. Rows that do not divide into such get the next best.
int64_t units_of_a_tile(int64_t across, int64_t unit_width) {
  const int64_t wanted = divided_up(64, unit_width);
  for (int64_t units = wanted; units <= across / 3; ++units)
    if (across % units == 0) return units;
  for (int64_t units = std::min(wanted, across); units > 1; --units)
    if (across % units == 0) return units;
  return 1;
}

class TileWriter {
 public:
  TileWriter() { decoder_.err = encoder_.err = listen(errors_); }
  TileWriter(const TileWriter&) = delete;
  TileWriter& operator=(const TileWriter&) = delete;
  ~TileWriter() {
    jpeg_destroy_compress(&encoder_);
    jpeg_destroy_decompress(&decoder_);
    std::free(memory_);
  }

  // False for what it cannot write. Once.
  bool write(std::span<const std::byte> file, bool whole_rows) {
    if (setjmp(errors_.back) != 0) return false;
    jpeg_create_decompress(&decoder_);
    jpeg_create_compress(&encoder_);
    limit_scans(decoder_, errors_);
    jpeg_mem_src(&decoder_, reinterpret_cast<const unsigned char*>(file.data()), file.size());
    jpeg_read_header(&decoder_, TRUE);
    if (decoder_.data_precision != 8) return false;
    jvirt_barray_ptr* coefficients = jpeg_read_coefficients(&decoder_);
    if (!is_complete()) return false;
    jpeg_mem_dest(&encoder_, &memory_, &bytes_);
    jpeg_copy_critical_parameters(&decoder_, &encoder_);
    encoder_.optimize_coding = TRUE;
    const int64_t unit = decoder_.num_components == 1 ? 8 : 8 * decoder_.max_h_samp_factor;  // pixels across
    const int64_t across = divided_up(decoder_.image_width, unit);
    encoder_.restart_interval = static_cast<unsigned>(whole_rows ? across : units_of_a_tile(across, unit));
    jpeg_write_coefficients(&encoder_, coefficients);
    jpeg_finish_compress(&encoder_);
    jpeg_finish_decompress(&decoder_);
    return true;
  }

  std::span<const std::byte> file() const { return {reinterpret_cast<const std::byte*>(memory_), bytes_}; }

 private:
  // A progressive file that ends before its last refinement is smoothed by decoders, which then cannot know of it.
  bool is_complete() const {
    if (decoder_.coef_bits == nullptr) return true;
    for (int component = 0; component < decoder_.num_components; ++component)
      for (int bits : decoder_.coef_bits[component])
        if (bits != 0) return false;
    return true;
  }

  JpegErrors errors_{};
  jpeg_decompress_struct decoder_{};
  jpeg_compress_struct encoder_{};
  unsigned char* memory_ = nullptr;  // libjpeg's, from malloc
  unsigned long bytes_ = 0;          // as libjpeg has it
};

// --- cutting ---------------------------------------------------------------------------------------------------------

constexpr auto kMark = std::byte{0xff};

bool is_restart(std::byte code) { return (code & std::byte{0xf8}) == std::byte{0xd0}; }

// Whether a marker with this code has a length after it. Others stand alone or, 0, are none.
bool has_length(unsigned code) { return code > 0x01 && code != 0xff && !is_restart(static_cast<std::byte>(code)); }

// Where the frame header's height is, with the width after it: two bytes each, high byte first.
std::optional<size_t> find_size(std::span<const std::byte> head) {
  for (size_t at = 2; at + 9 <= head.size();) {
    auto code = std::to_integer<unsigned>(head[at + 1]);
    if (head[at] != kMark || !has_length(code)) return {};
    if (code == 0xc0 || code == 0xc1) return at + 5;
    at += 2 + (std::to_integer<size_t>(head[at + 2]) << 8 | std::to_integer<size_t>(head[at + 3]));
  }
  return {};
}

// Where tiles [0, count) end: [count]. Each but the first begins two bytes after the end of the one before. Empty when
// a marker is missing or not the one that should follow.
std::vector<size_t> find_tiles(std::span<const std::byte> file, size_t at, size_t count) {
  std::vector<size_t> ends;
  ends.reserve(count);
  while (ends.size() < count) {
    const void* mark = std::memchr(file.data() + at, 0xff, file.size() - at);
    if (mark == nullptr) return {};
    at = static_cast<size_t>(static_cast<const std::byte*>(mark) - file.data());
    if (at + 2 > file.size()) return {};
    if (file[at + 1] != std::byte{0}) {
      bool last = !is_restart(file[at + 1]);
      if (!last && (std::to_integer<size_t>(file[at + 1]) & 7) != ends.size() % 8) return {};
      if (last && ends.size() + 1 != count) return {};
      ends.push_back(at);
    }
    at += 2;
  }
  return ends;
}

void put_size(std::byte* at, int64_t value) {
  at[0] = static_cast<std::byte>(value >> 8);
  at[1] = static_cast<std::byte>(value);
}

}  // namespace

std::vector<std::byte> tile_jpeg(std::span<const std::byte> file) {
  TileWriter tiles, rows;
  if (!tiles.write(file, false)) return {};
  // Where blocks have next to nothing in them the markers would be much of the file.
  const size_t much = file.size() + file.size() / 16;
  if (tiles.file().size() <= much || !rows.write(file, true)) return {tiles.file().begin(), tiles.file().end()};
  return {rows.file().begin(), rows.file().end()};
}

std::optional<JpegCut> cut_jpeg(std::span<const std::byte> file, const JpegLayout& layout, const ImageRegion& region) {
  const auto& [picture, unit, interval, units_at] = layout;
  int64_t units_across = divided_up(picture.width, unit.width);
  if (interval == 0 || units_across % interval != 0) return {};
  int64_t tile_width = interval * unit.width, across = units_across / interval;
  int64_t first_row = region.top / unit.height, past_row = divided_up(region.top + region.height, unit.height);
  int64_t first = region.left / tile_width, past = divided_up(region.left + region.width, tile_width);
  if (first_row == 0 && past - first == across) return {};
  std::optional<size_t> size_at = find_size(file.first(units_at));
  if (!size_at) return {};
  std::vector<size_t> ends = find_tiles(file, units_at, static_cast<size_t>((past_row - 1) * across + past));
  if (ends.empty()) return {};

  JpegCut cut{{}, first_row * unit.height, first * tile_width};
  cut.file.reserve(ends.back() + 4);
  cut.file.assign(file.begin(), file.begin() + static_cast<ptrdiff_t>(units_at));
  put_size(&cut.file[*size_at], std::min(past_row * unit.height, picture.height) - cut.top);
  put_size(&cut.file[*size_at + 2], std::min(past * tile_width, picture.width) - cut.left);
  auto put_mark = [&](unsigned code) { cut.file.insert(cut.file.end(), {kMark, static_cast<std::byte>(code)}); };
  unsigned number = 0;
  for (int64_t row = first_row; row < past_row; ++row)
    for (int64_t column = first; column < past; ++column, ++number) {
      if (number > 0) put_mark(0xd0 + (number - 1) % 8);
      auto tile = static_cast<size_t>(row * across + column);
      std::span<const std::byte> units = file.first(ends[tile]).subspan(tile == 0 ? units_at : ends[tile - 1] + 2);
      cut.file.insert(cut.file.end(), units.begin(), units.end());
    }
  put_mark(0xd9);
  return cut;
}

}  // namespace bonfire::data
