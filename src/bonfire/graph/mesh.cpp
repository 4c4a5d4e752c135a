#include "bonfire/graph/mesh.h"

#include <algorithm>

#include "bonfire/base/error.h"

namespace bonfire {

const char* name_of(Axis axis) {
  constexpr std::array<const char*, kAxes> kNames{"data", "pipeline", "tensor"};
  return kNames.at(static_cast<size_t>(axis));
}

std::string to_string(const MeshSizes& sizes) {
  return fmt::format("data {} × pipeline {} × tensor {}, order {}, {}, {}",
                     sizes.data == 0 ? "auto" : std::to_string(sizes.data), sizes.pipeline, sizes.tensor,
                     name_of(sizes.order[0]), name_of(sizes.order[1]), name_of(sizes.order[2]));
}

Mesh Mesh::of(int rank, int world, const MeshSizes& sizes) {
  if (sizes.data < 0 || sizes.pipeline < 1 || sizes.tensor < 1)
    throw_error<ConfigError>(
        "[mesh] data is {}, pipeline {} and tensor {}; expected at least 1 each, or 0 for data: what the others leave",
        sizes.data, sizes.pipeline, sizes.tensor);
  std::array<Axis, kAxes> named = sizes.order;
  std::ranges::sort(named);
  if (named != std::array{Axis::data, Axis::pipeline, Axis::tensor})
    throw_error<ConfigError>("[mesh] the order is {}, {}, {}; expected data, pipeline and tensor, each once",
                             name_of(sizes.order[0]), name_of(sizes.order[1]), name_of(sizes.order[2]));
  const int64_t others = int64_t{sizes.pipeline} * sizes.tensor;
  if (world % others != 0 || (sizes.data != 0 && sizes.data * others != world))
    throw_error<ConfigError>(
        "[mesh] {} cannot be arranged as data {} × pipeline {} × tensor {}: start {}, or change the mesh",
        world == 1 ? "one rank" : fmt::format("{} ranks", world), sizes.data == 0 ? "?" : std::to_string(sizes.data),
        sizes.pipeline, sizes.tensor,
        sizes.data == 0 ? fmt::format("a multiple of {}", others) : std::to_string(sizes.data * others));
  BONFIRE_CHECK(rank >= 0 && rank < world);
  Mesh mesh;
  mesh.sizes_ = {static_cast<int>(world / others), sizes.pipeline, sizes.tensor};
  int stride = 1;
  for (Axis axis : sizes.order) {
    const auto i = static_cast<size_t>(axis);
    mesh.strides_[i] = stride;
    mesh.places_[i] = rank / stride % mesh.sizes_[i];
    stride *= mesh.sizes_[i];
  }
  return mesh;
}

int Mesh::rank() const {
  int rank = 0;
  for (size_t i = 0; i < kAxes; ++i) rank += places_[i] * strides_[i];
  return rank;
}

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
