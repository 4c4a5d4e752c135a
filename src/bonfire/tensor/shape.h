#pragma once
// A list of up to eight extents: shapes, strides, permutations, axes. A plain value without allocation.

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace bonfire {

class Shape {
 public:
  static constexpr int kMaxRank = 8;

  Shape() = default;
  Shape(std::initializer_list<int64_t> extents) : Shape(std::span<const int64_t>(extents.begin(), extents.size())) {}
  explicit Shape(std::span<const int64_t> extents);  // ShapeError beyond kMaxRank

  int rank() const { return rank_; }
  // An axis may count from the end; ShapeError when there is no such axis.
  int64_t operator[](int axis) const { return extent_[place_of(axis)]; }
  int64_t& operator[](int axis) { return extent_[place_of(axis)]; }
  int64_t count() const {  // elements; 1 for a scalar
    int64_t product = 1;
    for (int i = 0; i < rank_; ++i) product *= extent_[i];
    return product;
  }
  void push_back(int64_t extent);
  const int64_t* begin() const { return extent_; }
  const int64_t* end() const { return extent_ + rank_; }
  std::span<const int64_t> extents() const { return {extent_, static_cast<size_t>(rank_)}; }

  friend bool operator==(const Shape& a, const Shape& b) {
    if (a.rank_ != b.rank_) return false;
    for (int i = 0; i < a.rank_; ++i)
      if (a.extent_[i] != b.extent_[i]) return false;
    return true;
  }

 private:
  int place_of(int axis) const {
    const int place = axis < 0 ? axis + rank_ : axis;
    if (static_cast<unsigned>(place) >= static_cast<unsigned>(rank_)) [[unlikely]]  // a negative one is beyond, too
      fail_axis(axis);
    return place;
  }
  [[noreturn]] void fail_axis(int axis) const;

  int64_t extent_[kMaxRank] = {};
  int32_t rank_ = 0;
};

std::string to_string(const Shape& shape);  // "[64, 1, 3, 3]"

Shape row_major_strides(const Shape& shape);  // in elements

// NumPy's rule; ShapeError naming `op` and both shapes when they do not fit.
Shape broadcast_shapes(std::string_view op, const Shape& a, const Shape& b);

// Axis in [0, rank) from one that may count from the end; ShapeError naming `op` otherwise.
int normalize_axis(std::string_view op, int64_t axis, int rank);

}  // namespace bonfire
