#pragma once
// Zeros that Winograd's algorithm must not lose. Private to backend/cpu.
//
// A result of a convolution whose products are all zero is zero, and with direct sums it comes out so. Winograd's
// algorithm gets it as a difference of large numbers: as rounding noise, 1e-7 of its neighbours. That is no error to
// speak of, but optimizers such as Adam divide a gradient by its own size: where a weight had to stay as it is (after
// a ReLU and a max pooling, with few samples, half of the weights may) it goes a full step in a random direction. A
// ReLU passes gradients on where noise is above zero. So results that are zero are found by looking at the operands,
// and set. Gradients by a weight that are sums of few products, small beside those of its neighbours, would drown in
// the noise of these: they are summed directly.

#include <cstdint>
#include <mutex>
#include <optional>

#include "bonfire/backend/cpu/convolution/winograd_tiles.h"

namespace bonfire::cpu {

// Results that see none but pixels whose numbers are all zero: of a convolution itself and, since weights are seldom
// zero, of the gradient by its input.
template <class Element>
class BlankResults {
 public:
  BlankResults(const WinogradImage& image, const WinogradImage& results, int64_t shift_y, int64_t shift_x, int kernel,
               int tile)
      : image_(image), results_(results), shift_y_(shift_y), shift_x_(shift_x), kernel_(kernel), tile_(tile) {}

  // Bit i * tile + j: result (i, j) of the tile at (top, left) of image n is one.
  uint32_t of_tile(const Element* data, int64_t n, int64_t top, int64_t left) const;

 private:
  uint32_t seen_by_all(int64_t first, int64_t extent, int64_t results) const;
  bool is_blank(const Element* data, int64_t n, int64_t y, int64_t x) const;

  WinogradImage image_, results_;
  int64_t shift_y_, shift_x_;  // from a result to the first pixel it sees
  int kernel_, tile_;
};

// Gradients by the weight that are sums of few products, or of none. Only those that are small enough to be noise are
// asked for. They are told by maps of which numbers of x and dy are zero, channel by channel: one of the first images,
// where most others soon meet often enough, and one of all, which is made when that is not enough to tell.
template <class Element>
class FewProducts {
 public:
  FewProducts(const WinogradImage& x, const WinogradImage& y, int64_t shift_y, int64_t shift_x, int kernel);

  int64_t bytes() const;
  void begin(const Element* x, const Element* dy, std::byte* memory);  // of bytes()
  // The sum where channel c of x and channel o of dy are both other than zero in few of the places where they meet at
  // the tap; nothing where there are more. By any thread.
  std::optional<Element> sum(int64_t o, int tap, int64_t c);

 private:
  struct Maps {
    int64_t images = 0, words = 0;         // a bit for each pixel of an image of x with its padding; words of a channel
    uint64_t *x = nullptr, *dy = nullptr;  // [channel][word]
    std::once_flag made;
  };
  void set_images(Maps& maps, int64_t images) const;
  int64_t bytes(const Maps& maps) const { return (x_.channels + y_.channels) * maps.words * kWordBytes; }
  void make(Maps& maps) const;
  void make_map(const WinogradImage& image, const Element* data, int64_t shift_y, int64_t shift_x, const Maps& maps,
                uint64_t* map) const;
  template <class Visit>
  bool meets_few(const Maps& maps, int64_t o, int tap, int64_t c, const Visit& visit) const;
  double product(int64_t bit, int64_t o, int tap, int64_t c) const;

  static constexpr int64_t kWordBytes = sizeof(uint64_t);
  WinogradImage x_, y_;
  int64_t shift_y_, shift_x_;
  int kernel_;
  int64_t rows_, columns_;  // of an image of x with its padding
  const Element *data_x_ = nullptr, *data_dy_ = nullptr;
  Maps first_, all_;
};

}  // namespace bonfire::cpu
