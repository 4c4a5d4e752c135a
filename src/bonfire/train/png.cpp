#include "bonfire/train/png.h"

#include <zlib.h>

#include "bonfire/base/error.h"

namespace bonfire::train {

namespace {

void put_word(std::string& out, uint32_t word) {
  for (int shift : {24, 16, 8, 0}) out += static_cast<char>(word >> shift);
}

void put_chunk(std::string& out, std::string_view kind, std::string_view data) {
  put_word(out, static_cast<uint32_t>(data.size()));
  std::string body = std::string(kind) + std::string(data);
  out += body;
  put_word(out, static_cast<uint32_t>(
                    crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()))));
}

std::string compressed(const std::string& text) {
  uLongf size = compressBound(text.size());
  std::string packed(size, '\0');
  int status = compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(text.data()),
                        text.size());
  BONFIRE_CHECK(status == Z_OK);
  packed.resize(size);
  return packed;
}

}  // namespace

std::string encode_png(std::span<const std::byte> pixels, const Shape& shape) {
  BONFIRE_CHECK(shape.rank() == 3 && (shape[2] == 1 || shape[2] == 3));
  BONFIRE_CHECK(pixels.size() == static_cast<size_t>(shape.count()));
  std::string header;
  put_word(header, static_cast<uint32_t>(shape[1]));
  put_word(header, static_cast<uint32_t>(shape[0]));
  header +=
      {8, static_cast<char>(shape[2] == 1 ? 0 : 2), 0, 0, 0};  // bits, grey or RGB, and the only methods there are
  auto row = static_cast<size_t>(shape[1] * shape[2]);
  std::string rows;
  for (size_t y = 0; y < static_cast<size_t>(shape[0]); ++y) {
    rows += '\0';  // no filter
    rows.append(reinterpret_cast<const char*>(pixels.data()) + y * row, row);
  }
  std::string png = "\x89PNG\r\n\x1a\n";
  put_chunk(png, "IHDR", header);
  put_chunk(png, "IDAT", compressed(rows));
  put_chunk(png, "IEND", "");
  return png;
}

std::string encode_base64(std::string_view bytes) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k)
      group = group << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    for (size_t k = 0; k < 4; ++k) text += i + k <= bytes.size() ? kLetters[group >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

}  // namespace bonfire::train
