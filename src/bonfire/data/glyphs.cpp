#include "bonfire/data/glyphs.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "bonfire/base/error.h"
#include "bonfire/base/random.h"

namespace bonfire::data {

namespace {

constexpr int kSide = 28;  // pixels
constexpr int kClasses = 10;

struct Point {
  float x, y;  // right and down; a glyph lies in the unit square
};
using Stroke = std::vector<Point>;

// From `begin` to `end` degrees around the centre; 0 is right, 90 is down.
Stroke arc(Point centre, float radius_x, float radius_y, float begin, float end) {
  constexpr int kPieces = 14;
  Stroke stroke;
  for (int i = 0; i <= kPieces; ++i) {
    float angle = (begin + (end - begin) * static_cast<float>(i) / kPieces) * static_cast<float>(M_PI) / 180;
    stroke.push_back({centre.x + radius_x * std::cos(angle), centre.y + radius_y * std::sin(angle)});
  }
  return stroke;
}

const std::array<std::vector<Stroke>, kClasses>& glyphs() {
  static const std::array<std::vector<Stroke>, kClasses> all{{
      {arc({0.50F, 0.50F}, 0.27F, 0.40F, 0, 360)},
      {{{0.34F, 0.26F}, {0.52F, 0.10F}, {0.52F, 0.90F}}},
      {arc({0.50F, 0.32F}, 0.25F, 0.22F, 200, 395), {{0.70F, 0.45F}, {0.25F, 0.90F}, {0.78F, 0.90F}}},
      {arc({0.47F, 0.30F}, 0.24F, 0.20F, 210, 450), arc({0.47F, 0.70F}, 0.27F, 0.20F, 270, 510)},
      {{{0.62F, 0.90F}, {0.62F, 0.10F}, {0.22F, 0.62F}, {0.80F, 0.62F}}},
      {{{0.75F, 0.10F}, {0.32F, 0.10F}, {0.29F, 0.46F}}, arc({0.48F, 0.65F}, 0.27F, 0.25F, 225, 500)},
      {{{0.66F, 0.10F}, {0.42F, 0.26F}, {0.29F, 0.50F}, {0.26F, 0.66F}}, arc({0.50F, 0.67F}, 0.24F, 0.23F, 0, 360)},
      {{{0.22F, 0.12F}, {0.78F, 0.12F}, {0.42F, 0.90F}}},
      {arc({0.50F, 0.29F}, 0.20F, 0.18F, 0, 360), arc({0.50F, 0.69F}, 0.25F, 0.21F, 0, 360)},
      {arc({0.50F, 0.33F}, 0.24F, 0.23F, 0, 360), {{0.74F, 0.34F}, {0.72F, 0.60F}, {0.62F, 0.90F}}},
  }};
  return all;
}

// Numbers in [0, 1), one after the other.
class Draws {
 public:
  Draws(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}
  float operator()() { return uniform_at(seed_, stream_, next_++); }
  float between(float low, float high) { return low + (high - low) * (*this)(); }

 private:
  uint64_t seed_, stream_, next_ = 0;
};

// How one glyph is written: unit square → pixels.
class Hand {
 public:
  explicit Hand(Draws& draw) {
    float angle = draw.between(-0.35F, 0.35F), slant = draw.between(-0.35F, 0.35F);
    float width = draw.between(13, 24), height = draw.between(16, 26);
    float cosine = std::cos(angle), sine = std::sin(angle);
    xx_ = width * cosine;
    xy_ = height * (slant * cosine - sine);
    yx_ = width * sine;
    yy_ = height * (slant * sine + cosine);
    x_ = kSide / 2.0F + draw.between(-3, 3);
    y_ = kSide / 2.0F + draw.between(-3, 3);
    for (float& wave : waves_) wave = draw.between(-1, 1);
  }

  Point write(Point at) const {
    constexpr float kTremble = 0.06F;
    float x = at.x - 0.5F + kTremble * (waves_[0] * std::sin(5 * at.y + 3 * waves_[1]) + waves_[2] * at.x * at.y);
    float y = at.y - 0.5F + kTremble * (waves_[3] * std::sin(5 * at.x + 3 * waves_[4]) + waves_[5] * at.x * at.y);
    return {x_ + xx_ * x + xy_ * y, y_ + yx_ * x + yy_ * y};
  }

 private:
  float xx_, xy_, yx_, yy_, x_, y_;
  std::array<float, 6> waves_{};
};

float squared_distance(Point p, Point a, Point b) {
  float dx = b.x - a.x, dy = b.y - a.y, length = dx * dx + dy * dy;
  float along = length > 0 ? std::clamp(((p.x - a.x) * dx + (p.y - a.y) * dy) / length, 0.0F, 1.0F) : 0.0F;
  float x = p.x - a.x - along * dx, y = p.y - a.y - along * dy;
  return x * x + y * y;
}

using Canvas = std::array<float, kSide * kSide>;  // ink in [0, 1]

// Ink falls off over a pixel at the rim of the pen. Only pixels near the line are looked at.
void draw_line(Canvas& canvas, Point a, Point b, float radius) {
  auto first = [&](float at) { return std::clamp(static_cast<int>(std::floor(at - radius - 1)), 0, kSide); };
  auto last = [&](float at) { return std::clamp(static_cast<int>(std::ceil(at + radius + 1)), -1, kSide - 1); };
  for (int y = first(std::min(a.y, b.y)); y <= last(std::max(a.y, b.y)); ++y) {
    for (int x = first(std::min(a.x, b.x)); x <= last(std::max(a.x, b.x)); ++x) {
      Point pixel{static_cast<float>(x) + 0.5F, static_cast<float>(y) + 0.5F};
      float ink = std::clamp(radius + 0.5F - std::sqrt(squared_distance(pixel, a, b)), 0.0F, 1.0F);
      float& here = canvas[static_cast<size_t>(y) * kSide + static_cast<size_t>(x)];
      here = std::max(here, ink);
    }
  }
}

uint64_t stream_of(int64_t index, Split split) {
  return 2 * static_cast<uint64_t>(index) + (split == Split::test ? 1 : 0);
}

// The first of an image's draws.
size_t draw_label(Draws& draw) { return static_cast<size_t>(draw() * kClasses); }

}  // namespace

Glyphs::Glyphs(const GlyphsOptions& options) : options_(options) {
  if (options.size < 0) throw_error<ConfigError>("[glyphs] size is {}, expected 0 or more images", options.size);
}

Sample Glyphs::get(int64_t index) const {
  require_index(index);
  Draws draw(options_.seed, stream_of(index, options_.split));
  const size_t label = draw_label(draw);
  Hand hand(draw);
  float radius = draw.between(0.6F, 1.7F), strength = draw.between(0.55F, 1), noise = draw.between(0.02F, 0.3F);

  Canvas canvas{};
  for (const Stroke& stroke : glyphs()[label])
    for (size_t i = 1; i < stroke.size(); ++i)
      draw_line(canvas, hand.write(stroke[i - 1]), hand.write(stroke[i]), radius);

  std::vector<std::byte> pixels(canvas.size());
  for (size_t i = 0; i < canvas.size(); ++i) {
    float value = strength * canvas[i] + noise * (draw() - 0.5F);
    pixels[i] = static_cast<std::byte>(std::lround(255 * std::clamp(value, 0.0F, 1.0F)));
  }
  return image_sample(std::move(pixels), {kSide, kSide, 1}, static_cast<int64_t>(label));
}

int64_t Glyphs::label(int64_t index) const {
  require_index(index);
  Draws draw(options_.seed, stream_of(index, options_.split));
  return static_cast<int64_t>(draw_label(draw));
}

std::vector<std::string> Glyphs::class_names() const {
  std::vector<std::string> names;
  for (int i = 0; i < kClasses; ++i) names.push_back(std::to_string(i));
  return names;
}

}  // namespace bonfire::data
