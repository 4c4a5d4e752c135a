#pragma once
// Images with one object each, its class and its box, built in: a digit of data/glyphs.h at a random place and in a
// random size, over grey noise. Image i is a pure function of (seed, i); the two splits have no image in common.

#include <array>

#include "bonfire/data/glyphs.h"

namespace bonfire::data {

// A label: f32 [5], the class and then the box: left, top, right, bottom as shares of the image's width and height.
struct BoxLabel {
  int64_t label = 0;
  std::array<float, 4> box = {};
};
Array array_of(const BoxLabel& label);
BoxLabel box_label_of(const Sample& sample);

class BoxedGlyphs final : public Dataset {
 public:
  static constexpr int64_t kSide = 48;  // pixels

  explicit BoxedGlyphs(const GlyphsOptions& options = {}) : glyphs_(options), options_(options) {}
  int64_t size() const override { return options_.size; }
  Sample get(int64_t index) const override;  // u8 [48, 48, 1]
  int64_t label(int64_t index) const override { return glyphs_.label(index); }
  std::vector<std::string> class_names() const override { return glyphs_.class_names(); }

 private:
  Glyphs glyphs_;
  GlyphsOptions options_;
};

}  // namespace bonfire::data
