#include "bonfire/graph/mesh.h"

#include <gtest/gtest.h>

#include <set>

#include "bonfire/base/error.h"
#include "tests/support/expect_error.h"

namespace bonfire::mesh_test {
namespace {

TEST(Mesh, RanksAlongTensorAreNeighbours) {
  const Mesh mesh = Mesh::of(7, 12, {.pipeline = 3, .tensor = 2});
  EXPECT_EQ(to_string(mesh), "data 2 × pipeline 3 × tensor 2");
  EXPECT_EQ(mesh.place(Axis::data), 1);
  EXPECT_EQ(mesh.place(Axis::pipeline), 1);
  EXPECT_EQ(mesh.place(Axis::tensor), 1);
  EXPECT_EQ(mesh.ranks_along(Axis::tensor), (std::vector<int>{6, 7}));
  EXPECT_EQ(mesh.ranks_along(Axis::pipeline), (std::vector<int>{3, 7, 11}));
  EXPECT_EQ(mesh.ranks_along(Axis::data), (std::vector<int>{5, 7}));
  const Mesh other = Mesh::of(7, 12, {.pipeline = 3, .tensor = 2, .order = {Axis::pipeline, Axis::data, Axis::tensor}});
  EXPECT_EQ(other.ranks_along(Axis::pipeline), (std::vector<int>{6, 7, 8}));
  EXPECT_EQ(other.ranks_along(Axis::data), (std::vector<int>{7, 10}));
  EXPECT_EQ(other.ranks_along(Axis::tensor), (std::vector<int>{1, 7}));
}

// Whatever the sizes: each rank has a place of its own, and lines along an axis share all ranks out.
TEST(Mesh, EveryArrangementIsWhole) {
  for (int data = 1; data <= 4; ++data)
    for (int pipeline = 1; pipeline <= 3; ++pipeline)
      for (int tensor = 1; tensor <= 3; ++tensor) {
        const int world = data * pipeline * tensor;
        std::set<std::array<int, kAxes>> places;
        for (int rank = 0; rank < world; ++rank) {
          const Mesh mesh = Mesh::of(rank, world, {.data = data, .pipeline = pipeline, .tensor = tensor});
          EXPECT_EQ(mesh.rank(), rank);
          EXPECT_EQ(mesh.world(), world);
          places.insert({mesh.place(Axis::data), mesh.place(Axis::pipeline), mesh.place(Axis::tensor)});
          for (Axis axis : {Axis::data, Axis::pipeline, Axis::tensor}) {
            const std::vector<int> line = mesh.ranks_along(axis);
            EXPECT_EQ(static_cast<int>(line.size()), mesh.size(axis));
            EXPECT_EQ(line[static_cast<size_t>(mesh.place(axis))], rank);
            for (int other : line)
              EXPECT_EQ(Mesh::of(other, world, {.pipeline = pipeline, .tensor = tensor}).first_along(axis),
                        mesh.first_along(axis));
          }
        }
        EXPECT_EQ(static_cast<int>(places.size()), world);
      }
}

TEST(Mesh, RanksThatCannotBeArrangedSoAreToldHowMany) {
  EXPECT_ERROR(Mesh::of(0, 6, {.tensor = 4}), ConfigError,
               "6 ranks cannot be arranged as data ? × pipeline 1 × tensor 4");
  EXPECT_ERROR(Mesh::of(0, 8, {.data = 3, .tensor = 2}), ConfigError, "8 ranks cannot be arranged as data 3");
  EXPECT_ERROR(Mesh::of(0, 8, {.tensor = 0}), ConfigError, "expected at least 1 each");
  EXPECT_ERROR(Mesh::of(0, 8, {.pipeline = 65536, .tensor = 65536}), ConfigError, "cannot be arranged");
}

TEST(Mesh, OneRankIsOne) { EXPECT_EQ(to_string(Mesh()), "one rank"); }

}  // namespace
}  // namespace bonfire::mesh_test
