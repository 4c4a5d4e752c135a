#include "bonfire/graph/mesh.h"

#include <algorithm>

#include "bonfire/base/error.h"

namespace bonfire {

const char* name_of(Axis axis) {
  constexpr std::array<const char*, kAxes> kNames{"data", "pipeline", "tensor"};
  return kNames.at(static_cast<size_t>(axis));
}

Mesh Mesh::of(int rank, int world, const MeshSizes& sizes) {
  if (sizes.data < 0 || sizes.pipeline < 1 || sizes.tensor < 1)
    throw_error<ConfigError>(
        "[mesh] data is {}, pipeline {} and tensor {}; expected at least 1 each, or 0 for data: what the others leave",
        sizes.data, sizes.pipeline, sizes.tensor);
  const int64_t others = int64_t{sizes.pipeline} * sizes.tensor;
  if (world % others != 0 || (sizes.data != 0 && sizes.data * others != world))
    throw_error<ConfigError>(
        "[mesh] {} ranks cannot be arranged as data {} × pipeline {} × tensor {}: start as many as their product",
        world, sizes.data == 0 ? "?" : std::to_string(sizes.data), sizes.pipeline, sizes.tensor);
  BONFIRE_CHECK(rank >= 0 && rank < world);
  Mesh mesh;
  mesh.sizes_ = {static_cast<int>(world / others), sizes.pipeline, sizes.tensor};
  mesh.places_ = {static_cast<int>(rank / others), rank / sizes.tensor % sizes.pipeline, rank % sizes.tensor};
  return mesh;
}

int Mesh::rank() const { return (places_[0] * sizes_[1] + places_[1]) * sizes_[2] + places_[2]; }

std::vector<int> Mesh::ranks_along(Axis axis) const {
  std::vector<int> ranks;
  Mesh other = *this;
  int& place = other.places_[static_cast<size_t>(axis)];
  for (place = 0; place < size(axis); ++place) ranks.push_back(other.rank());
  return ranks;
}

void Mesh::mix_into(base::Hash128& hash) const {
  for (int i = 0; i < kAxes; ++i)
    hash.mix((static_cast<uint64_t>(sizes_[static_cast<size_t>(i)]) << 32) |
             static_cast<uint64_t>(places_[static_cast<size_t>(i)]));
}

std::string to_string(const Mesh& mesh) {
  std::string text;
  for (int i = 0; i < kAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    if (mesh.size(axis) == 1) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : " × ", name_of(axis), mesh.size(axis));
  }
  return text.empty() ? "one rank" : text;
}

}  // namespace bonfire
