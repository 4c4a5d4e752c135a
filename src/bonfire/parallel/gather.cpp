#include "bonfire/parallel/gather.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "bonfire/base/checksum.h"
#include "bonfire/base/error.h"
#include "bonfire/comm/same_settings.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/parallel/job.h"

namespace bonfire::fleet {

namespace {

struct Piece {
  Slice slice;
  std::vector<int> ranks;  // that have it
  uint32_t checksum;
};

// What there is, and who has it: the same list on all ranks.
std::vector<Piece> pieces_of(comm::Group& group, const std::string& name, DType dtype, const Slice& slice,
                             uint32_t checksum) {
  std::vector<int64_t> mine = slice.words();
  mine.insert(mine.begin(), {static_cast<int64_t>(dtype), checksum});
  std::vector<Piece> pieces;
  const std::vector<std::string> all = comm::exchange_texts(group, nlohmann::json(mine).dump());
  for (size_t r = 0; r < all.size(); ++r) {
    const auto rank = static_cast<int>(r);
    const auto said = nlohmann::json::parse(all[r]).get<std::vector<int64_t>>();
    const Slice there = Slice::from_words(std::span(said).subspan(2));
    const auto sum = static_cast<uint32_t>(said[1]);
    if (there.whole() != slice.whole() || said[0] != static_cast<int64_t>(dtype))
      throw_error<DataError>("[gather] {} is {} {} on rank {} and {} {} on rank {}; all ranks gather the same variable",
                             name, name_of(dtype), to_string(slice.whole()), group.rank(),
                             name_of(static_cast<DType>(said[0])), to_string(there.whole()), rank);
    auto same = std::find_if(pieces.begin(), pieces.end(), [&](const Piece& one) { return one.slice == there; });
    if (same == pieces.end()) {
      pieces.push_back({there, {rank}, sum});
      continue;
    }
    if (same->checksum != sum)
      throw_error<DataError>("[gather] ranks {} and {} both have {} ({}), and their values differ", same->ranks[0],
                             rank, name, to_string(there));
    same->ranks.push_back(rank);
  }
  return pieces;
}

std::string list_of(const std::vector<Piece>& pieces) {
  std::string text;
  for (const Piece& piece : pieces)
    text += fmt::format("\n  rank{} {}: {}", piece.ranks.size() == 1 ? "" : "s", fmt::join(piece.ranks, ", "),
                        to_string(piece.slice));
  return text;
}

// The whole, as far as it is there.
class Assembly {
 public:
  Assembly(const Shape& whole, DType dtype)
      : whole_(whole),
        element_(size_of(dtype)),
        bytes_(static_cast<size_t>(whole.count()) * element_),
        is_there_(static_cast<size_t>(whole.count())) {}

  // Whether what was there already is the same.
  bool add(const Slice& slice, const std::byte* values) {
    bool same = true;
    for (const Overlap& part : overlaps(slice, whole_)) {
      const std::byte* from = values + static_cast<size_t>(part.from) * element_;
      for (auto i = static_cast<size_t>(part.to), end = i + static_cast<size_t>(part.count); i < end; ++i) {
        std::byte* to = bytes_.data() + i * element_;
        if (is_there_[i] != 0) same = same && std::memcmp(to, from, element_) == 0;
        std::memcpy(to, from, element_);
        is_there_[i] = 1;
        from += element_;
      }
    }
    return same;
  }
  int64_t missing() const { return std::count(is_there_.begin(), is_there_.end(), 0); }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  Slice whole_;
  size_t element_;
  std::vector<std::byte> bytes_;
  std::vector<uint8_t> is_there_;  // [element]
};

}  // namespace

std::vector<std::byte> gather(comm::Group& group, const std::string& name, DType dtype, const Slice& slice,
                              std::span<const std::byte> values) {
  const std::vector<Piece> pieces = pieces_of(group, name, dtype, slice, base::crc32c(values));
  if (pieces.size() == 1 && slice.is_all()) return {values.begin(), values.end()};
  Assembly assembly(slice.whole(), dtype);
  bool same = true;
  for (const Piece& piece : pieces) {  // those with the same need not send it again
    std::vector<std::byte> bytes(static_cast<size_t>(piece.slice.count()) * size_of(dtype));
    if (piece.ranks[0] == group.rank()) std::copy(values.begin(), values.end(), bytes.begin());
    group.broadcast({bytes.data(), bytes.size(), DType::u8}, piece.ranks[0]);
    same = assembly.add(piece.slice, bytes.data()) && same;
  }
  if (!same) throw_error<DataError>("[gather] parts of {} that several ranks have differ:{}", name, list_of(pieces));
  if (const int64_t missing = assembly.missing(); missing > 0)
    throw_error<DataError>("[gather] no rank has {} of the {} elements of {}:{}", missing, slice.whole().count(), name,
                           list_of(pieces));
  return assembly.take();
}

Tensor gather(const Variable& variable) {
  const std::vector<std::byte> part = variable.save_stored();
  const TensorSpec spec{variable.shape(), variable.dtype(), {}};
  if (world_size() == 1 && variable.slice().is_all()) return Tensor::from_bytes(part, spec);
  return Tensor::from_bytes(gather(*joined("gather").group, variable.name(), variable.dtype(), variable.slice(), part),
                            spec);
}

}  // namespace bonfire::fleet
