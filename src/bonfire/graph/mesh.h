#pragma once
// Mesh: how the ranks of a job are arranged, data × pipeline × tensor, and where this one stands. Ranks that differ
// along `tensor` alone are numbered one after the other, then along `data`, then along `pipeline`: those that talk most
// are nearest to each other. `order` changes that.
//
//   Mesh mesh = Mesh::of(5, 8, {.tensor = 2});  // rank 5 of 8: data 4 × tensor 2
//   mesh.place(Axis::data);                     // 2
//   mesh.ranks_along(Axis::data);               // 1, 3, 5, 7

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "bonfire/base/hash.h"

namespace bonfire {

enum class Axis : uint8_t { data, pipeline, tensor };
inline constexpr int kAxes = 3;
const char* name_of(Axis axis);

struct MeshSizes {
  int data = 0;  // 0: what the others leave
  int pipeline = 1, tensor = 1;
  std::array<Axis, kAxes> order = {Axis::tensor, Axis::data, Axis::pipeline};  // neighbours first

  friend bool operator==(const MeshSizes&, const MeshSizes&) = default;
};
std::string to_string(const MeshSizes& sizes);  // "data auto × pipeline 1 × tensor 2, order tensor, data, pipeline"

class Mesh {
 public:
  Mesh() = default;  // one rank
  // ConfigError where `world` ranks cannot be arranged so.
  static Mesh of(int rank, int world, const MeshSizes& sizes);

  int size(Axis axis) const { return sizes_[static_cast<size_t>(axis)]; }
  int place(Axis axis) const { return places_[static_cast<size_t>(axis)]; }
  int rank() const;
  int world() const { return sizes_[0] * sizes_[1] * sizes_[2]; }
  std::vector<int> ranks_along(Axis axis) const;  // that stand where this one does on the other axes, in order
  // The first of them, which is a number that all of them have in common.
  int first_along(Axis axis) const { return ranks_along(axis).front(); }

  void mix_into(base::Hash128& hash) const;
  friend bool operator==(const Mesh&, const Mesh&) = default;

 private:
  std::array<int, kAxes> sizes_{1, 1, 1}, places_{0, 0, 0};  // [axis]
  std::array<int, kAxes> strides_{1, 1, 1};                  // [axis]: between the numbers of neighbours along it
};

std::string to_string(const Mesh& mesh);  // "data 2 × tensor 2"; "one rank"

}  // namespace bonfire
