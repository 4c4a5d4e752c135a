#pragma once
// Zeros that Winograd's algorithm must not lose. Private to backend/cpu.
//
// A result of a convolution whose products are all zero is zero, and with direct sums it comes out so. Winograd's
// algorithm gets it as a difference of large numbers: as rounding noise, 1e-7 of its neighbours. That is no error to
// speak of, but optimizers such as Adam divide a gradient by its own size: where a weight had to stay as it is (behind
// a ReLU and a max pooling, with few samples, half of the weights may) it goes a full step in a random direction. A
// ReLU passes gradients on where noise is above zero. So results that are zero are found by looking at the operands,
// and set. Gradients by a weight that are sums of few products, small beside those of its neighbours, would drown in
// the noise of these: they are summed directly.

#include <cstdint>
#include <mutex>
#include <optional>

#include "bonfire/backend/cpu/winograd_tiles.h"
#include "bonfire/base/thread_pool.h"

namespace bonfire::cpu {

// The pixels of an image whose numbers are all zero, for results that see nothing else: of the image itself and, since
// weights are seldom zero, of the gradient by it.
template <class Element>
class BlankPixels {
 public:
  BlankPixels(const WinogradImage& image, int64_t shift_y, int64_t shift_x, int kernel)
      : image_(image), shift_y_(shift_y), shift_x_(shift_x), kernel_(kernel) {}

  int64_t bytes() const { return image_.batch * (1 + image_.height * image_.width); }
  // Looks at an image; `map` has bytes().
  void find(const Element* data, uint8_t* map, ThreadPool& pool) const;
  // Bit i * tile + j: result (i, j) of the tile at (top, left) of image n sees none but such pixels.
  uint32_t blank_results(const uint8_t* map, int64_t n, int64_t top, int64_t left, int tile) const;

 private:
  bool sees_blank(const uint8_t* pixels, int64_t top, int64_t left) const;

  WinogradImage image_;
  int64_t shift_y_, shift_x_;  // from a result to the first pixel it sees
  int kernel_;
};

// Gradients by the weight that are sums of few products, or of none. Only those that are small enough to be noise are
// asked for. Maps of which numbers of x and dy are zero, channel by channel, are made when it takes more than a look at
// some pixels to tell.
template <class Element>
class FewProducts {
 public:
  FewProducts(const WinogradImage& x, const WinogradImage& y, int64_t shift_y, int64_t shift_x, int kernel);

  int64_t bytes() const { return (x_.channels + y_.channels) * words_ * static_cast<int64_t>(sizeof(uint64_t)); }
  void begin(const Element* x, const Element* dy, std::byte* memory);  // of bytes()
  // The sum where channel c of x and channel o of dy are both other than zero in few of the places where they meet at
  // the tap; nothing where there are more. By any thread.
  std::optional<Element> sum(int64_t o, int tap, int64_t c);

 private:
  int64_t bit_of(int64_t n, int64_t row, int64_t column) const { return (n * rows_ + row) * columns_ + column; }
  bool soon_many(int64_t o, int tap, int64_t c) const;
  double product(int64_t bit, int64_t o, int tap, int64_t c) const;
  void make_maps();
  void make_map(const WinogradImage& image, const Element* data, int64_t shift_y, int64_t shift_x, uint64_t* map) const;

  WinogradImage x_, y_;
  int64_t shift_y_, shift_x_;
  int kernel_;
  int64_t rows_, columns_;  // of an image of x with its padding; each of its pixels has a bit
  int64_t words_;           // of a channel
  const Element *data_x_ = nullptr, *data_dy_ = nullptr;
  uint64_t *map_x_ = nullptr, *map_dy_ = nullptr;  // [channel][word]
  std::once_flag made_;
};

}  // namespace bonfire::cpu
