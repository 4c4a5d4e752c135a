// How patches get into panels. The rows of the image that a block of pixels sees are copied into scratch memory with
// their zero padding (and widened from bf16, unless panels are bf16). There every number of the patch matrix has a
// separable address,
//   scratch[pixel_offset + element_offset],
// so that the packing of matrices serves. Neighbouring pixels must be neighbours in memory for it to be fast in
// row-major images; for that, columns are sorted by their remainder modulo the step when rows are copied.

#include "bonfire/backend/cpu/convolution/convolution_core_patches.h"

#include <algorithm>
#include <cstdlib>
#include <type_traits>
#include <vector>

#include "bonfire/tensor/dtype.h"

namespace bonfire::cpu {

namespace {

constexpr int64_t kSlack = 32;  // elements that packing may read before and after the scratch

// Where the pixels [first, end) lie in scratch memory: the images they touch one below the other, each with the rows
// that its pixels see. Rows of images are numbered through.
struct Window {
  int64_t first_image = 0, first_row = 0;  // of the first pixel
  int64_t last_image = 0, last_row = 0;    // of the last
  int64_t first_height = 0;                // scratch rows of the first image
  int64_t full_height = 0;                 // of an image whose pixels are all there
  int64_t height = 0;                      // of all

  Window(const PatchGrid& g, int64_t first, int64_t end, int64_t span_y) {
    const int64_t area = g.rows * g.cols;
    first_image = first / area;
    first_row = first % area / g.cols;
    last_image = (end - 1) / area;
    last_row = (end - 1) % area / g.cols;
    full_height = (g.rows - 1) * g.step_y + span_y;
    const int64_t end_row = first_image == last_image ? last_row : g.rows - 1;
    first_height = (end_row - first_row) * g.step_y + span_y;
    height = first_height;
    if (last_image > first_image) height += (last_image - first_image - 1) * full_height + last_row * g.step_y + span_y;
  }

  int64_t scratch_row(const PatchGrid& g, int64_t image, int64_t row) const {
    if (image == first_image) return (row - first_row) * g.step_y;
    return first_height + (image - first_image - 1) * full_height + row * g.step_y;
  }
};

template <class Element, class Acc>
class PaddedPatches final : public PanelSource<Acc> {
 public:
  PaddedPatches(const PatchGrid& grid, const Element* image, bool pixels_are_lanes)
      : g_(grid), image_(image), pixels_are_lanes_(pixels_are_lanes) {
    span_y_ = (g_.taps_y - 1) * std::abs(g_.tap_step_y) + 1;
    span_x_ = (g_.taps_x - 1) * std::abs(g_.tap_step_x) + 1;
    top_ = g_.first_y + std::min<int64_t>(0, (g_.taps_y - 1) * g_.tap_step_y);
    left_ = g_.first_x + std::min<int64_t>(0, (g_.taps_x - 1) * g_.tap_step_x);
    const int64_t seen = (g_.cols - 1) * g_.step_x + span_x_;  // columns of the image, from left_
    if (g_.channels_last) {
      pixel_pitch_ = g_.step_x * g_.channels;
      row_pitch_ = seen * g_.channels;
    } else {
      pixel_pitch_ = 1;
      phase_pitch_ = (seen + g_.step_x - 1) / g_.step_x;
      row_pitch_ = phase_pitch_ * g_.step_x;
    }
    for (int64_t r = 0; r < g_.taps_y; ++r)
      for (int64_t s = 0; s < g_.taps_x; ++s)
        tap_offset_.push_back((g_.first_y + r * g_.tap_step_y - top_) * row_pitch_ +
                              column_offset(g_.first_x + s * g_.tap_step_x - left_));
  }

  int64_t scratch_size(int64_t lanes, int64_t kc) const override {
    if (g_.pixels() == 0) return 0;
    const int64_t pixels = std::min(pixels_are_lanes_ ? lanes : kc, g_.pixels());
    const int64_t elements = pixels_are_lanes_ ? kc : lanes;
    const int64_t images = std::min(g_.batch, pixels / (g_.rows * g_.cols) + 2);
    const int64_t rows = std::min(g_.batch * g_.rows, pixels / g_.cols + 2);
    const int64_t height = rows * g_.step_y + images * span_y_;
    const int64_t taps = g_.taps_y * g_.taps_x;
    const int64_t channels = g_.channels_last ? 1 : std::min(g_.channels, elements / taps + 2);
    return height * row_pitch_ * channels + 2 * kSlack;
  }

  void pack(const PanelBlock& block, int width, Acc* panels, std::span<Acc> scratch) const override {
    pack_as<Acc>(block, width, panels, scratch.data());
  }

  int bf16_parts() const override { return kBf16Parts<Element>; }
  void pack_bf16(const PanelBlock& block, PanelLayout layout, uint16_t* panels, std::span<Acc> scratch) const override {
    if constexpr (kBf16Parts < Element >> 0)
      pack_as<Element>(block, layout, panels, reinterpret_cast<Element*>(scratch.data()));
    else
      PanelSource<Acc>::pack_bf16(block, layout, panels, scratch);
  }

 private:
  // Scratch holds numbers of type `Number`.
  template <class Number, class Packed>
  void pack_as(const PanelBlock& block, PanelLayout layout, Packed* panels, Number* scratch) const {
    const int64_t pixel = pixels_are_lanes_ ? block.lane : block.k;
    const int64_t pixels = pixels_are_lanes_ ? block.lanes : block.kc;
    const int64_t element = pixels_are_lanes_ ? block.k : block.lane;
    const int64_t elements = pixels_are_lanes_ ? block.kc : block.lanes;
    if (pixels == 0 || elements == 0) return;
    const Window window(g_, pixel, pixel + pixels, span_y_);
    const int64_t taps = g_.taps_y * g_.taps_x;
    const int64_t channel = g_.channels_last ? 0 : element / taps;
    const int64_t channel_end = g_.channels_last ? g_.channels : (element + elements - 1) / taps + 1;
    Number* base = scratch + kSlack;
    const bool loaded = g_.channels_last && pixels_are_lanes_ && block.same_lanes;
    if (!loaded) load(window, channel, channel_end, base);

    int64_t k_offset[kMaxSliceK], lane_offset[8 * kMaxPanelWidth];
    const std::span<int64_t> k_offsets(k_offset, static_cast<size_t>(block.kc));
    const int64_t channel_pitch = window.height * row_pitch_;
    if (pixels_are_lanes_)
      element_offsets(element, channel, channel_pitch, k_offsets);
    else
      pixel_offsets(window, pixel, k_offsets);
    const int64_t group = 8 * layout.width;  // lanes
    for (int64_t lane = 0; lane < block.lanes; lane += group) {
      const std::span<int64_t> lane_offsets(lane_offset, static_cast<size_t>(std::min(group, block.lanes - lane)));
      if (pixels_are_lanes_)
        pixel_offsets(window, pixel + lane, lane_offsets);
      else
        element_offsets(element + lane, channel, channel_pitch, lane_offsets);
      pack_panels<Number, Packed>(base, lane_offsets, k_offsets, layout, true, panels + lane * layout.steps(block.kc));
    }
  }

  // Of a column `x - left_` of the image in a row of scratch memory.
  int64_t column_offset(int64_t column) const {
    if (g_.channels_last) return column * g_.channels;
    return column % g_.step_x * phase_pitch_ + column / g_.step_x;
  }

  void pixel_offsets(const Window& window, int64_t pixel, std::span<int64_t> out) const {
    int64_t image = pixel / (g_.rows * g_.cols), row = pixel / g_.cols % g_.rows, col = pixel % g_.cols;
    for (size_t done = 0; done < out.size(); col = 0) {
      int64_t offset = window.scratch_row(g_, image, row) * row_pitch_ + col * pixel_pitch_;
      const size_t end = std::min(out.size(), done + static_cast<size_t>(g_.cols - col));
      for (; done < end; ++done, offset += pixel_pitch_) out[done] = offset;
      if (++row == g_.rows) row = 0, ++image;
    }
  }

  void element_offsets(int64_t element, int64_t first_channel, int64_t channel_pitch, std::span<int64_t> out) const {
    const int64_t taps = g_.taps_y * g_.taps_x;
    int64_t channel = g_.channels_last ? element % g_.channels : element / taps;
    int64_t tap = g_.channels_last ? element / g_.channels : element % taps;
    for (int64_t& offset : out) {
      if (g_.channels_last) {
        offset = tap_offset_[static_cast<size_t>(tap)] + channel;
        if (++channel == g_.channels) channel = 0, ++tap;
      } else {
        offset = tap_offset_[static_cast<size_t>(tap)] + (channel - first_channel) * channel_pitch;
        if (++tap == taps) tap = 0, ++channel;
      }
    }
  }

  // Row-major: [channel][scratch row][column, by remainder]; channels-last: [scratch row][column][channel].
  template <class Number>
  void load(const Window& window, int64_t channel, int64_t channel_end, Number* to) const {
    const int64_t planes = g_.channels_last ? 1 : channel_end - channel;
    for (int64_t plane = 0; plane < planes; ++plane)
      for (int64_t image = window.first_image; image <= window.last_image; ++image) {
        const int64_t begin = image == window.first_image ? window.first_row : 0;
        const int64_t end = image == window.last_image ? window.last_row : g_.rows - 1;
        const int64_t height = (end - begin) * g_.step_y + span_y_;
        const Element* from = image_ + image * g_.stride_n + (channel + plane) * g_.stride_c;
        for (int64_t i = 0; i < height; ++i, to += row_pitch_) {
          if (i % g_.step_y >= span_y_) continue;  // between patches
          const int64_t y = begin * g_.step_y + top_ + i;
          if (y < 0 || y >= g_.height)
            std::fill(to, to + row_pitch_, Number{0});
          else if (g_.channels_last)
            copy_pixels(from + y * g_.stride_y, to);
          else
            copy_row(from + y * g_.stride_y, to);
        }
      }
  }

  // The columns of one row of the image that pixels see, zero outside it.
  template <class Number>
  void copy_pixels(const Element* from, Number* to) const {
    const int64_t count = row_pitch_ / g_.channels;
    const int64_t begin = std::clamp<int64_t>(-left_, 0, count);
    const int64_t end = std::clamp<int64_t>(g_.width - left_, begin, count);
    std::fill(to, to + begin * g_.channels, Number{0});
    const Element* pixel = from + (left_ + begin) * g_.stride_x;
    if (g_.stride_x == g_.channels)
      std::copy_n(pixel, (end - begin) * g_.channels, to + begin * g_.channels);
    else
      for (int64_t column = begin; column < end; ++column, pixel += g_.stride_x)
        std::copy_n(pixel, g_.channels, to + column * g_.channels);
    std::fill(to + end * g_.channels, to + row_pitch_, Number{0});
  }

  template <class Number>
  void copy_row(const Element* from, Number* to) const {
    // Where steps are longer than patches, some columns lie between them.
    for (int64_t phase = 0; phase < std::min(g_.step_x, span_x_); ++phase, to += phase_pitch_) {
      // Columns left_ + phase + i * step_x.
      const int64_t first = left_ + phase, step = g_.step_x;
      const int64_t begin = std::clamp<int64_t>((-first + step - 1) / step, 0, phase_pitch_);
      const int64_t end = std::clamp<int64_t>((g_.width - first + step - 1) / step, begin, phase_pitch_);
      std::fill(to, to + begin, Number{0});
      if (step == 1)
        std::copy(from + first + begin, from + first + end, to + begin);
      else
        for (int64_t i = begin; i < end; ++i) to[i] = from[first + i * step];
      std::fill(to + end, to + phase_pitch_, Number{0});
    }
  }

  PatchGrid g_;
  const Element* image_;
  bool pixels_are_lanes_;
  int64_t span_y_, span_x_;          // extent of a patch, in the image
  int64_t top_, left_;               // position of pixel (0, 0)'s patch in the image
  int64_t pixel_pitch_, row_pitch_;  // in scratch memory
  int64_t phase_pitch_ = 0;
  std::vector<int64_t> tap_offset_;  // [taps_y, taps_x]
};

// Whether every tap of every pixel lies in the image.
bool inside(const PatchGrid& g) {
  auto fits = [](int64_t first, int64_t taps, int64_t tap_step, int64_t pixels, int64_t step, int64_t extent) {
    const int64_t low = first + std::min<int64_t>(0, (taps - 1) * tap_step);
    const int64_t high = first + std::max<int64_t>(0, (taps - 1) * tap_step) + (pixels - 1) * step;
    return low >= 0 && high < extent;
  };
  return fits(g.first_y, g.taps_y, g.tap_step_y, g.rows, g.step_y, g.height) &&
         fits(g.first_x, g.taps_x, g.tap_step_x, g.cols, g.step_x, g.width);
}

}  // namespace

template <class Element, class Acc>
std::unique_ptr<PanelSource<Acc>> patch_source(const PatchGrid& g, const Element* image, bool pixels_are_lanes) {
  // Patches that need no padding and whose numbers are neighbours already are packed from where they are.
  const bool single = g.taps_y == 1 && g.taps_x == 1 && g.step_y == 1 && g.step_x == 1;
  const bool empty = g.pixels() == 0 || g.patch_size() == 0;
  if (!empty && (!inside(g) || !(g.channels_last || single)))
    return std::make_unique<PaddedPatches<Element, Acc>>(g, image, pixels_are_lanes);
  const Axis pixels{{g.batch, g.stride_n}, {g.rows, g.step_y * g.stride_y}, {g.cols, g.step_x * g.stride_x}};
  const Axis::Dim channel{g.channels, g.stride_c}, tap_y{g.taps_y, g.tap_step_y * g.stride_y};
  const Axis::Dim tap_x{g.taps_x, g.tap_step_x * g.stride_x};
  const Axis elements = g.channels_last ? Axis{tap_y, tap_x, channel} : Axis{channel, tap_y, tap_x};
  const Element* origin = image ? image + g.first_y * g.stride_y + g.first_x * g.stride_x : nullptr;
  if (pixels_are_lanes) return std::make_unique<MemorySource<Element, Acc>>(origin, pixels, elements);
  return std::make_unique<MemorySource<Element, Acc>>(origin, elements, pixels);
}

template std::unique_ptr<PanelSource<float>> patch_source(const PatchGrid&, const float*, bool);
template std::unique_ptr<PanelSource<float>> patch_source(const PatchGrid&, const bfloat16*, bool);
template std::unique_ptr<PanelSource<double>> patch_source(const PatchGrid&, const double*, bool);

}  // namespace bonfire::cpu
