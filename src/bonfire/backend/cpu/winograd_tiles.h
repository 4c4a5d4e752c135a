#pragma once
// How an image is cut into tiles of Winograd's algorithm, and memory for transformed tiles. Private to backend/cpu.

#include <cstdint>

#include "bonfire/backend/cpu/winograd_kernel.h"

namespace bonfire::cpu {

// An image [batch, height, width, channels].
struct WinogradImage {
  int64_t batch, height, width, channels;
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

// Offsets of side x side pixels, the first of them at (top, left), which may lie outside; -1 for those that do.
void pixel_offsets(const WinogradImage& image, int64_t n, int64_t top, int64_t left, int side, int64_t* offset);

// Room for `tiles` transformed tiles of `channels` channels.
struct WinogradRoom {
  int64_t blocks;
  WinogradPlaces places;

  WinogradRoom(int64_t tiles, int64_t channels, int64_t width);
  int64_t size(int positions) const { return positions * places.position_stride; }  // elements
};

}  // namespace bonfire::cpu
