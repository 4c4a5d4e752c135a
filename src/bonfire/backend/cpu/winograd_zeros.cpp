#include "bonfire/backend/cpu/winograd_zeros.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "bonfire/tensor/dtype.h"

namespace bonfire::cpu {

namespace {

constexpr int kWordBits = 64;

constexpr int kFew = 32;  // products

bool is_something(float number) { return number != 0; }
bool is_something(uint16_t bf16) { return (bf16 & 0x7FFF) != 0; }

double value_of(float number) { return number; }
double value_of(uint16_t bf16) { return std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16); }

template <class Element>
bool is_blank(const Element* pixel, int64_t channels) {
  return std::none_of(pixel, pixel + channels, [](Element number) { return is_something(number); });
}

}  // namespace

template <class Element>
void BlankPixels<Element>::find(const Element* data, uint8_t* map, ThreadPool& pool) const {
  const int64_t pixels = image_.height * image_.width;
  pool.parallel_for(image_.batch, 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      uint8_t* own = map + image_.batch + n * pixels;
      uint8_t any = 0;
      for (int64_t i = 0; i < pixels; ++i)
        any |= own[i] = is_blank(data + (n * pixels + i) * image_.channels, image_.channels) ? 1 : 0;
      map[n] = any;
    }
  });
}

template <class Element>
bool BlankPixels<Element>::sees_blank(const uint8_t* pixels, int64_t top, int64_t left) const {
  for (int64_t y = std::max<int64_t>(top, 0); y < std::min(top + kernel_, image_.height); ++y)
    for (int64_t x = std::max<int64_t>(left, 0); x < std::min(left + kernel_, image_.width); ++x)
      if (pixels[y * image_.width + x] == 0) return false;
  return true;
}

template <class Element>
uint32_t BlankPixels<Element>::blank_results(const uint8_t* map, int64_t n, int64_t top, int64_t left, int tile) const {
  const bool beyond = -shift_y_ >= kernel_ || -shift_x_ >= kernel_;  // some results see padding alone
  if (map[n] == 0 && !beyond) return 0;
  const uint8_t* pixels = map + image_.batch + n * image_.height * image_.width;
  uint32_t bits = 0;
  for (int i = 0; i < tile; ++i)
    for (int j = 0; j < tile; ++j)
      if (sees_blank(pixels, top + i + shift_y_, left + j + shift_x_)) bits |= 1U << (i * tile + j);
  return bits;
}

template <class Element>
FewProducts<Element>::FewProducts(const WinogradImage& x, const WinogradImage& y, int64_t shift_y, int64_t shift_x,
                                  int kernel)
    : x_(x),
      y_(y),
      shift_y_(shift_y),
      shift_x_(shift_x),
      kernel_(kernel),
      rows_(y.height + kernel - 1),
      columns_(y.width + kernel - 1) {
  // Further words may be read, for a tap that moves the last one.
  words_ = (x.batch * rows_ * columns_ + (kernel - 1) * (columns_ + 1)) / kWordBits + 2;
}

template <class Element>
void FewProducts<Element>::begin(const Element* x, const Element* dy, std::byte* memory) {
  data_x_ = x;
  data_dy_ = dy;
  map_x_ = reinterpret_cast<uint64_t*>(memory);
  map_dy_ = map_x_ + x_.channels * words_;
}

// Whether the first pixels of dy tell that there are many.
template <class Element>
bool FewProducts<Element>::soon_many(int64_t o, int tap, int64_t c) const {
  constexpr int64_t kFirst = 512;
  const int64_t count = std::min(kFirst, y_.batch * y_.height * y_.width);
  int met = 0;
  for (int64_t i = 0; i < count && met <= kFew; ++i) {
    if (!is_something(data_dy_[i * y_.channels + o])) continue;
    const int64_t n = i / (y_.height * y_.width), row = i / y_.width % y_.height + tap / kernel_ + shift_y_;
    const int64_t column = i % y_.width + tap % kernel_ + shift_x_;
    if (row < 0 || row >= x_.height || column < 0 || column >= x_.width) continue;
    met += is_something(data_x_[((n * x_.height + row) * x_.width + column) * x_.channels + c]) ? 1 : 0;
  }
  return met > kFew;
}

// Of the pixel of dy that has this bit, and the one of x that it meets there.
template <class Element>
double FewProducts<Element>::product(int64_t bit, int64_t o, int tap, int64_t c) const {
  const int64_t n = bit / (rows_ * columns_), row = bit / columns_ % rows_, column = bit % columns_;
  const int64_t at_dy = (n * y_.height + row) * y_.width + column;
  const int64_t at_x = (n * x_.height + row + tap / kernel_ + shift_y_) * x_.width + column + tap % kernel_ + shift_x_;
  return value_of(data_dy_[at_dy * y_.channels + o]) * value_of(data_x_[at_x * x_.channels + c]);
}

template <class Element>
std::optional<Element> FewProducts<Element>::sum(int64_t o, int tap, int64_t c) {
  if (soon_many(o, tap, c)) return {};
  std::call_once(made_, [this] { make_maps(); });
  const uint64_t *of_dy = map_dy_ + o * words_, *of_x = map_x_ + c * words_;
  const int64_t shift = tap / kernel_ * columns_ + tap % kernel_;
  const int64_t skipped = shift / kWordBits;
  const int bits = static_cast<int>(shift % kWordBits);
  double total = 0;
  int met = 0;
  for (int64_t w = 0; w + skipped + 1 < words_; ++w) {
    const uint64_t *at = of_x + w + skipped, beyond = bits == 0 ? 0 : at[1] << (kWordBits - bits);
    uint64_t both = of_dy[w] & (at[0] >> bits | beyond);
    met += std::popcount(both);
    if (met > kFew) return {};
    for (; both != 0; both &= both - 1) total += product(w * kWordBits + std::countr_zero(both), o, tap, c);
  }
  if constexpr (sizeof(Element) == sizeof(float))
    return static_cast<float>(total);
  else
    return std::bit_cast<uint16_t>(bfloat16(static_cast<float>(total)));
}

template <class Element>
void FewProducts<Element>::make_maps() {
  make_map(x_, data_x_, shift_y_, shift_x_, map_x_);
  make_map(y_, data_dy_, 0, 0, map_dy_);
}

// Bit (n, row, column) of a channel: its pixel there, moved by the padding, is something.
template <class Element>
void FewProducts<Element>::make_map(const WinogradImage& image, const Element* data, int64_t shift_y, int64_t shift_x,
                                    uint64_t* map) const {
  const int64_t channels = image.channels;
  std::vector<uint64_t> word(static_cast<size_t>(channels));
  int64_t number = 0;  // of the word
  auto give = [&] {
    for (int64_t c = 0; c < channels; ++c) map[c * words_ + number] = std::exchange(word[static_cast<size_t>(c)], 0);
    ++number;
  };
  for (int64_t n = 0; n < image.batch; ++n)
    for (int64_t y = 0; y < image.height; ++y)
      for (int64_t x = 0; x < image.width; ++x, data += channels) {
        if (y - shift_y >= rows_ || x - shift_x >= columns_) continue;
        const int64_t bit = bit_of(n, y - shift_y, x - shift_x);
        while (number < bit / kWordBits) give();
        for (int64_t c = 0; c < channels; ++c)
          word[static_cast<size_t>(c)] |= static_cast<uint64_t>(is_something(data[c])) << (bit % kWordBits);
      }
  while (number < words_) give();
}

template class BlankPixels<float>;
template class BlankPixels<uint16_t>;
template class FewProducts<float>;
template class FewProducts<uint16_t>;

}  // namespace bonfire::cpu
