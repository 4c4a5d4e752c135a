#include "bonfire/graph/slice.h"

#include <algorithm>
#include <cstring>

#include "bonfire/base/error.h"

namespace bonfire {

namespace {

Shape all_zeros(const Shape& shape) {
  Shape zeros = shape;
  for (int i = 0; i < zeros.rank(); ++i) zeros[i] = 0;
  return zeros;
}

// The row-major index of the element that `order` puts at `place`.
int64_t index_at(const Shape& shape, const Layout& order, int64_t place) {
  if (order.row_major()) return place;
  const Shape strides = row_major_strides(shape);
  int64_t index = 0;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    const int axis = static_cast<int>(order.order[i]);
    index += place % shape[axis] * strides[axis];
    place /= shape[axis];
  }
  return index;
}

void append(std::vector<Stretch>& stretches, const Stretch& stretch) {
  if (stretch.count == 0) return;
  if (!stretches.empty()) {
    Stretch& last = stretches.back();
    if (last.whole + last.count == stretch.whole && last.local + last.count == stretch.local) {
      last.count += stretch.count;
      return;
    }
  }
  stretches.push_back(stretch);
}

// Stretches of a box from `axis` on, of the rows whose first elements are given.
void append_box(const Slice& slice, const Shape& strides, const Shape& local_strides, int axis, int64_t whole,
                int64_t local, std::vector<Stretch>& stretches) {
  if (axis == slice.whole().rank()) return append(stretches, {whole, local, 1});
  const int64_t blocks = axis == slice.packed() ? slice.blocks() : 1, extent = slice.extent()[axis];
  const int64_t block = slice.whole()[axis] / blocks;
  const bool last = strides[axis] == 1 && local_strides[axis] == 1;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t from = b * block + slice.offset()[axis], to = b * extent;
    if (last) {
      append(stretches, {whole + from, local + to, extent});
      continue;
    }
    for (int64_t i = 0; i < extent; ++i)
      append_box(slice, strides, local_strides, axis + 1, whole + (from + i) * strides[axis],
                 local + (to + i) * local_strides[axis], stretches);
  }
}

}  // namespace

Slice::Slice(const Shape& whole) : whole_(whole), offset_(all_zeros(whole)), extent_(whole) {}

Slice Slice::box(const Shape& whole, const Shape& offset, const Shape& extent, int packed, int64_t blocks) {
  bool inside = offset.rank() == whole.rank() && extent.rank() == whole.rank() && blocks >= 1;
  inside = inside && (blocks == 1 || (packed >= 0 && packed < whole.rank() && whole[packed] % blocks == 0));
  for (int i = 0; inside && i < whole.rank(); ++i) {
    const int64_t most = i == packed ? whole[i] / blocks : whole[i];
    inside = offset[i] >= 0 && extent[i] >= 0 && extent[i] <= most && offset[i] <= most - extent[i];
  }
  if (!inside)
    throw_error<ShapeError>("[slice] a box of extents {} from {} is not inside {}{}", to_string(extent),
                            to_string(offset), to_string(whole),
                            blocks == 1 ? "" : fmt::format(" with {} blocks along axis {}", blocks, packed));
  Slice slice(whole);
  slice.offset_ = offset;
  slice.extent_ = extent;
  if (blocks > 1) {
    slice.packed_ = packed;
    slice.blocks_ = blocks;
  }
  return slice;
}

Slice Slice::part(const Shape& whole, int axis, int64_t index, int64_t parts, int64_t blocks) {
  if (index < 0 || index >= parts || blocks < 1)
    throw_error<ShapeError>("[slice] part {} of {} of {} blocks of {}", index, parts, blocks, to_string(whole));
  const int64_t size = whole[axis] / blocks, usual = size / parts, larger = size % parts;
  Shape offset = all_zeros(whole), extent = whole;
  offset[axis] = index * usual + std::min(index, larger);
  extent[axis] = usual + (index < larger ? 1 : 0);
  return box(whole, offset, extent, axis < 0 ? axis + whole.rank() : axis, blocks);
}

Slice Slice::range(const Shape& whole, int64_t begin, int64_t end, const Layout& order) {
  std::vector<int64_t> axes(order.order.begin(), order.order.end());
  std::sort(axes.begin(), axes.end());
  bool known = order.block == 0 && (axes.empty() || order.order.rank() == whole.rank());
  for (size_t i = 0; known && i < axes.size(); ++i) known = axes[i] == static_cast<int64_t>(i);
  if (!known || begin < 0 || begin > end || end > whole.count())
    throw_error<ShapeError>("[slice] elements {} to {} of {} in the order {}: there is no such range", begin, end,
                            to_string(whole), to_string(order));
  Slice slice(whole);
  slice.is_range_ = true;
  slice.begin_ = begin;
  slice.end_ = end;
  if (!same_places(whole, order, {})) slice.order_ = order;
  return slice;
}

Shape Slice::local() const {
  if (is_range_) return {end_ - begin_};
  Shape shape = extent_;
  if (blocks_ > 1) shape[packed_] *= blocks_;
  return shape;
}

bool Slice::is_all() const { return !is_range_ && local() == whole_; }

int64_t Slice::whole_index(int64_t local_index) const {
  if (is_range_) return index_at(whole_, order_, begin_ + local_index);
  const Shape shape = local(), strides = row_major_strides(whole_);
  int64_t whole = 0;
  for (int i = whole_.rank() - 1; i >= 0; --i) {
    int64_t place = local_index % shape[i];
    local_index /= shape[i];
    if (blocks_ > 1 && i == packed_)
      place = place / extent_[i] * (whole_[i] / blocks_) + offset_[i] + place % extent_[i];
    else
      place += offset_[i];
    whole += place * strides[i];
  }
  return whole;
}

std::vector<int64_t> Slice::words() const {
  std::vector<int64_t> words{is_range_ ? 1 : 0, whole_.rank()};
  auto add = [&words](const Shape& list) { words.insert(words.end(), list.begin(), list.end()); };
  add(whole_);
  if (is_range_) {
    words.insert(words.end(), {begin_, end_});
    add(order_.order);
  } else {
    add(offset_);
    add(extent_);
    words.insert(words.end(), {packed_, blocks_});
  }
  return words;
}

Slice Slice::from_words(std::span<const int64_t> words) {
  auto require = [](bool right) {
    if (!right) throw_error<DataError>("[slice] the description of a slice is damaged");
  };
  auto take = [&](size_t count) {
    require(words.size() >= count);
    std::span<const int64_t> taken = words.first(count);
    words = words.subspan(count);
    return taken;
  };
  const std::span<const int64_t> head = take(2);
  require(head[1] >= 0 && head[1] <= Shape::kMaxRank);
  const auto rank = static_cast<size_t>(head[1]);
  const Shape whole(take(rank));
  if (head[0] == 1) {
    const std::span<const int64_t> ends = take(2);
    require(words.empty() || words.size() == rank);
    return range(whole, ends[0], ends[1], {.order = Shape(words)});
  }
  const Shape offset(take(rank)), extent(take(rank));
  const std::span<const int64_t> packing = take(2);
  require(words.empty());
  return box(whole, offset, extent, static_cast<int>(packing[0]), packing[1]);
}

void Slice::mix_into(base::Hash128& hash) const {
  for (int64_t word : words()) hash.mix(static_cast<uint64_t>(word));
}

std::string to_string(const Slice& slice) {
  if (slice.is_all()) return "all of " + to_string(slice.whole());
  if (slice.is_range()) {
    const std::string order = slice.order().row_major() ? "" : " in the order " + to_string(slice.order());
    return fmt::format("elements {} to {} of {}{}", slice.begin(), slice.end(), to_string(slice.whole()), order);
  }
  std::string text;
  for (int i = 0; i < slice.whole().rank(); ++i)
    text += fmt::format("{}{}:{}", i == 0 ? "[" : ", ", slice.offset()[i], slice.offset()[i] + slice.extent()[i]);
  text += "] of " + to_string(slice.whole());
  if (slice.blocks() > 1) text += fmt::format(" in each of {} blocks along axis {}", slice.blocks(), slice.packed());
  return text;
}

std::vector<Stretch> stretches_of(const Slice& slice) {
  std::vector<Stretch> stretches;
  if (slice.count() == 0) return stretches;
  if (slice.is_all()) return {{0, 0, slice.count()}};
  if (!slice.is_range()) {
    append_box(slice, row_major_strides(slice.whole()), row_major_strides(slice.local()), 0, 0, 0, stretches);
    return stretches;
  }
  if (slice.order().row_major()) return {{slice.begin(), 0, slice.end() - slice.begin()}};
  std::vector<Stretch> unordered;
  for (int64_t place = slice.begin(); place < slice.end(); ++place)
    append(unordered, {index_at(slice.whole(), slice.order(), place), place - slice.begin(), 1});
  std::sort(unordered.begin(), unordered.end(), [](const Stretch& a, const Stretch& b) { return a.whole < b.whole; });
  for (const Stretch& stretch : unordered) append(stretches, stretch);
  return stretches;
}

std::vector<Overlap> overlaps(const Slice& from, const Slice& to) {
  BONFIRE_CHECK(from.whole() == to.whole(), "{} and {}", to_string(from), to_string(to));
  if (from == to) return from.count() == 0 ? std::vector<Overlap>{} : std::vector<Overlap>{{0, 0, from.count()}};
  if (from.is_range() && to.is_range() && from.order() == to.order()) {
    const int64_t begin = std::max(from.begin(), to.begin()), end = std::min(from.end(), to.end());
    if (begin >= end) return {};
    return {{begin - from.begin(), begin - to.begin(), end - begin}};
  }
  const std::vector<Stretch> first = stretches_of(from), second = stretches_of(to);
  std::vector<Overlap> common;
  for (size_t i = 0, j = 0; i < first.size() && j < second.size();) {
    const Stretch &a = first[i], &b = second[j];
    const int64_t begin = std::max(a.whole, b.whole), end = std::min(a.whole + a.count, b.whole + b.count);
    if (begin < end) common.push_back({a.local + begin - a.whole, b.local + begin - b.whole, end - begin});
    a.whole + a.count < b.whole + b.count ? ++i : ++j;
  }
  return common;
}

int64_t count_of(std::span<const Overlap> overlaps) {
  int64_t count = 0;
  for (const Overlap& one : overlaps) count += one.count;
  return count;
}

void copy_overlaps(std::span<const Overlap> overlaps, size_t element_bytes, const std::byte* from, std::byte* to) {
  for (const Overlap& one : overlaps)
    std::memcpy(to + static_cast<size_t>(one.to) * element_bytes, from + static_cast<size_t>(one.from) * element_bytes,
                static_cast<size_t>(one.count) * element_bytes);
}

}  // namespace bonfire
