#pragma once
// How an image is cut into tiles of Winograd's algorithm. Private to backend/cpu.

#include <algorithm>
#include <cstdint>

#include "bonfire/backend/cpu/convolution/winograd_kernel.h"

namespace bonfire::cpu {

// An image [batch, height, width, channels].
struct WinogradImage {
  int64_t batch, height, width, channels;

  // side x side pixels of image n from (top, left), which may lie outside.
  WinogradPixels pixels(int64_t n, int64_t top, int64_t left, int side) const;
};

// Tiles that cover an image of results, numbered (n, row, column).
struct WinogradGrid {
  int64_t rows, cols;  // per image
  int64_t count;
  int tile;

  WinogradGrid(const WinogradImage& results, int tile)
      : rows((results.height + tile - 1) / tile),
        cols((results.width + tile - 1) / tile),
        count(results.batch * rows * cols),
        tile(tile) {}

  int64_t image(int64_t index) const { return index / (rows * cols); }
  int64_t top(int64_t index) const { return index / cols % rows * tile; }  // row of its first result
  int64_t left(int64_t index) const { return index % cols * tile; }
};

// Transforms what tiles of a grid see in an image.
template <class Element>
struct WinogradSource {
  const WinogradImage& image;
  const WinogradGrid& grid;
  const Element* data;
  int64_t shift_y, shift_x;  // from a tile's first result to the first pixel it sees
  int side;                  // pixels that it sees
  void (*transform)(const Element*, const WinogradPixels&, int64_t, float*, const WinogradPlaces&);

  // Tiles [first, end) of the grid, as those numbered from `slot` in `to`.
  void run(int64_t first, int64_t end, int64_t slot, float* to, const WinogradPlaces& places) const;
};

}  // namespace bonfire::cpu
