#pragma once
// Slice: the part of a tensor that somebody has: all of it, a box (a part of each axis), or a range of its elements
// in the order of a layout. An axis that packs several matrices (query, key and value; the gates of an LSTM) is split
// by its blocks: the slice has its part of each. All functions are pure, so ranks need not ask each other who has what.
//
//   Slice rows = Slice::part({128, 768}, 0, 1, 4);            // the second of four: rows 32 to 64
//   Slice heads = Slice::part({2304, 768}, 0, 1, 4, 3);       // of each of the three blocks the second of four parts
//   Slice flat = Slice::range({64, 3, 3, 3}, 0, 500);         // the first 500 elements
//   for (const Overlap& one : overlaps(rows, flat_of_it)) …   // what of one is in the other

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bonfire/base/hash.h"
#include "bonfire/tensor/storage.h"

namespace bonfire {

class Slice {
 public:
  explicit Slice(const Shape& whole);  // all of it

  // Elements offset[i] to offset[i] + extent[i] of each axis, or of each of the `blocks` of the axis `packed`: there
  // offset and extent count in one block. ShapeError where that is not inside.
  static Slice box(const Shape& whole, const Shape& offset, const Shape& extent, int packed = 0, int64_t blocks = 1);
  // Of `parts` parts of an axis the one that is number `index`; the first ones are larger by one where that is not
  // even.
  static Slice part(const Shape& whole, int axis, int64_t index, int64_t parts, int64_t blocks = 1);
  // Elements begin to end of the tensor as `order` lays it out.
  static Slice range(const Shape& whole, int64_t begin, int64_t end, const Layout& order = {});

  const Shape& whole() const { return whole_; }
  Shape local() const;  // what is stored: a box's extents, all blocks one after the other; of a range [elements]
  int64_t count() const { return local().count(); }
  bool is_all() const;
  bool is_range() const { return is_range_; }

  // Of a box. Of a range all of it.
  const Shape& offset() const { return offset_; }
  const Shape& extent() const { return extent_; }
  int packed() const { return packed_; }
  int64_t blocks() const { return blocks_; }
  // Of a range.
  int64_t begin() const { return begin_; }
  int64_t end() const { return end_; }
  const Layout& order() const { return order_; }

  int64_t whole_index(int64_t local) const;  // both row-major

  // All of it as numbers, for keys and messages; from_words is given what words() gave, else it throws a DataError.
  std::vector<int64_t> words() const;
  static Slice from_words(std::span<const int64_t> words);
  void mix_into(base::Hash128& hash) const;

  friend bool operator==(const Slice&, const Slice&) = default;

 private:
  Shape whole_;
  bool is_range_ = false;
  Shape offset_, extent_;
  int packed_ = 0;
  int64_t blocks_ = 1;
  int64_t begin_ = 0, end_ = 0;
  Layout order_;
};

// An axis that packs several matrices, one after the other; most tensors have one block.
struct Packing {
  int axis = 0;
  int64_t blocks = 1;
};

// "all of [128, 768]", "[32:64, 0:768] of [128, 768]", "elements 0 to 500 of [64, 3, 3, 3]"
std::string to_string(const Slice& slice);

// Neighbours in the whole and in the slice, in elements, both row-major.
struct Stretch {
  int64_t whole, local, count;
};
std::vector<Stretch> stretches_of(const Slice& slice);  // by their place in the whole, as long as they can be

// Elements that two slices of one tensor both have: `count` neighbours from element `from` of the one are those from
// element `to` of the other.
struct Overlap {
  int64_t from, to, count;
};
std::vector<Overlap> overlaps(const Slice& from, const Slice& to);
int64_t count_of(std::span<const Overlap> overlaps);

// Copies what both have from the values of one to those of the other.
void copy_overlaps(std::span<const Overlap> overlaps, size_t element_bytes, const std::byte* from, std::byte* to);

}  // namespace bonfire
