#include "bonfire/backend/cpu/convolution/winograd_zeros.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "bonfire/tensor/dtype.h"

namespace bonfire::cpu {

namespace {

constexpr int kWordBits = 64;

constexpr int kFew = 32;  // products
constexpr int64_t kFirstPixels = 256;

double value_of(float number) { return number; }
double value_of(uint16_t bf16) { return std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16); }

uint32_t bits_of(float number) { return std::bit_cast<uint32_t>(number) << 1; }  // without the sign
uint32_t bits_of(uint16_t bf16) { return static_cast<uint32_t>(bf16) << 17; }

}  // namespace

// Positions of a tile's patch in one dimension, as bits, of which each of the results sees one; 0 where some result
// sees padding alone.
template <class Element>
uint32_t BlankResults<Element>::seen_by_all(int64_t first, int64_t extent, int64_t results) const {
  uint32_t bits = 0;
  int64_t last = -1;
  for (int64_t i = 0; i < std::min<int64_t>(tile_, results); ++i) {
    const int64_t begin = std::max(i, -first), end = std::min(i + kernel_, extent - first);
    if (begin >= end) return 0;
    if (last >= begin) continue;
    last = end - 1;
    bits |= 1U << last;
  }
  return bits;
}

template <class Element>
bool BlankResults<Element>::is_blank(const Element* data, int64_t n, int64_t y, int64_t x) const {
  constexpr int64_t kAtOnce = 64 / sizeof(Element);
  const Element* pixel = data + ((n * image_.height + y) * image_.width + x) * image_.channels;
  for (int64_t c = 0; c < image_.channels; c += kAtOnce) {
    uint32_t any = 0;
    for (int64_t i = c; i < std::min(c + kAtOnce, image_.channels); ++i) any |= bits_of(pixel[i]);
    if (any != 0) return false;
  }
  return true;
}

template <class Element>
uint32_t BlankResults<Element>::of_tile(const Element* data, int64_t n, int64_t top, int64_t left) const {
  const int64_t y = top + shift_y_, x = left + shift_x_;
  const uint32_t rows = seen_by_all(y, image_.height, results_.height - top);
  const uint32_t columns = seen_by_all(x, image_.width, results_.width - left);
  bool some = rows == 0 || columns == 0;
  for (uint32_t r = rows; r != 0 && !some; r &= r - 1)
    for (uint32_t c = columns; c != 0 && !some; c &= c - 1)
      some = is_blank(data, n, y + std::countr_zero(r), x + std::countr_zero(c));
  if (!some) return 0;

  const int side = tile_ + kernel_ - 1;
  uint32_t blank[kMaxWinogradPatch];  // of a row of pixels: those outside are
  for (int64_t i = 0; i < side; ++i) {
    blank[i] = ~0U;
    if (y + i < 0 || y + i >= image_.height) continue;
    for (int64_t j = std::max<int64_t>(0, -x); j < std::min<int64_t>(side, image_.width - x); ++j)
      if (!is_blank(data, n, y + i, x + j)) blank[i] &= ~(1U << j);
  }
  const uint32_t seen = (1U << kernel_) - 1;
  uint32_t bits = 0;
  for (int i = 0; i < tile_; ++i) {
    uint32_t all = ~0U;
    for (int k = 0; k < kernel_; ++k) all &= blank[i + k];
    for (int j = 0; j < tile_; ++j)
      if ((all >> j & seen) == seen) bits |= 1U << (i * tile_ + j);
  }
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
  const int64_t enough = (kFirstPixels + y.height * y.width - 1) / (y.height * y.width);
  set_images(first_, std::min(enough, x.batch));
  set_images(all_, x.batch);
}

// Further words may be read, for a tap that moves the last one.
template <class Element>
void FewProducts<Element>::set_images(Maps& maps, int64_t images) const {
  maps.images = images;
  maps.words = (images * rows_ * columns_ + (kernel_ - 1) * (columns_ + 1)) / kWordBits + 2;
}

template <class Element>
int64_t FewProducts<Element>::bytes() const {
  return bytes(first_) + bytes(all_);
}

template <class Element>
void FewProducts<Element>::begin(const Element* x, const Element* dy, std::byte* memory) {
  data_x_ = x;
  data_dy_ = dy;
  for (Maps* maps : {&first_, &all_}) {
    maps->x = reinterpret_cast<uint64_t*>(memory);
    maps->dy = maps->x + x_.channels * maps->words;
    memory += bytes(*maps);
  }
}

// Calls visit(word, both) for the words of dy where something meets; false as soon as more than a few have.
template <class Element>
template <class Visit>
bool FewProducts<Element>::meets_few(const Maps& maps, int64_t o, int tap, int64_t c, const Visit& visit) const {
  const uint64_t *of_dy = maps.dy + o * maps.words, *of_x = maps.x + c * maps.words;
  const int64_t shift = tap / kernel_ * columns_ + tap % kernel_;
  const int64_t skipped = shift / kWordBits;
  const int bits = static_cast<int>(shift % kWordBits);
  int met = 0;
  for (int64_t w = 0; w + skipped + 1 < maps.words; ++w) {
    const uint64_t *at = of_x + w + skipped, beyond = bits == 0 ? 0 : at[1] << (kWordBits - bits);
    const uint64_t both = of_dy[w] & (at[0] >> bits | beyond);
    met += std::popcount(both);
    if (met > kFew) return false;
    visit(w, both);
  }
  return true;
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
  std::call_once(first_.made, [this] { make(first_); });
  if (!meets_few(first_, o, tap, c, [](int64_t, uint64_t) {})) return {};
  std::call_once(all_.made, [this] { make(all_); });
  double total = 0;
  const bool few = meets_few(all_, o, tap, c, [&](int64_t word, uint64_t both) {
    for (; both != 0; both &= both - 1) total += product(word * kWordBits + std::countr_zero(both), o, tap, c);
  });
  if (!few) return {};
  if constexpr (sizeof(Element) == sizeof(float))
    return static_cast<float>(total);
  else
    return std::bit_cast<uint16_t>(bfloat16(static_cast<float>(total)));
}

template <class Element>
void FewProducts<Element>::make(Maps& maps) const {
  make_map(x_, data_x_, shift_y_, shift_x_, maps, maps.x);
  make_map(y_, data_dy_, 0, 0, maps, maps.dy);
}

// Bit (n, row, column) of a channel: its pixel there, moved by the padding, is something.
template <class Element>
void FewProducts<Element>::make_map(const WinogradImage& image, const Element* data, int64_t shift_y, int64_t shift_x,
                                    const Maps& maps, uint64_t* map) const {
  const int64_t channels = image.channels;
  std::vector<uint64_t> word(static_cast<size_t>(channels));
  int64_t number = 0;  // of the word
  auto give = [&] {
    for (int64_t c = 0; c < channels; ++c)
      map[c * maps.words + number] = std::exchange(word[static_cast<size_t>(c)], 0);
    ++number;
  };
  for (int64_t n = 0; n < maps.images; ++n)
    for (int64_t y = 0; y < image.height; ++y)
      for (int64_t x = 0; x < image.width; ++x, data += channels) {
        if (y - shift_y >= rows_ || x - shift_x >= columns_) continue;
        const int64_t bit = (n * rows_ + y - shift_y) * columns_ + x - shift_x;
        while (number < bit / kWordBits) give();
        for (int64_t c = 0; c < channels; ++c)
          word[static_cast<size_t>(c)] |= static_cast<uint64_t>(bits_of(data[c]) != 0) << (bit % kWordBits);
      }
  while (number < maps.words) give();
}

template class BlankResults<float>;
template class BlankResults<uint16_t>;
template class FewProducts<float>;
template class FewProducts<uint16_t>;

}  // namespace bonfire::cpu
