#pragma once
// The data set that is built in: the ten digits as strokes of a pen, 28×28, each drawn with a slant, a size, a place, a
// stroke width, a trembling hand and noise of its own. Image i is a pure function of (seed, i); the two splits have no
// image in common.

#include "bonfire/data/dataset.h"
#include "bonfire/data/idx.h"

namespace bonfire::data {

struct GlyphsOptions {
  Split split = Split::train;
  int64_t size = 20000;  // images
  uint64_t seed = 1;
};

class Glyphs final : public Dataset {
 public:
  explicit Glyphs(const GlyphsOptions& options = {});  // ConfigError when size is negative
  int64_t size() const override { return options_.size; }
  Sample get(int64_t index) const override;  // u8 [28, 28, 1]
  int64_t label(int64_t index) const override;
  std::vector<std::string> class_names() const override;

 private:
  GlyphsOptions options_;
};

}  // namespace bonfire::data
