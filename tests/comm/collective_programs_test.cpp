// Random programs of collectives, over meshes of two axes: what ranks compute together is what one computes of all
// their values at once.
//
//   BONFIRE_SEED=N test_comm --gtest_filter='CollectivePrograms.*'      one program once more
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "bonfire/bonfire.h"
#include "bonfire/comm/collectives.h"
#include "bonfire/comm/reduce.h"
#include "tests/comm/collective_reference.h"
#include "tests/comm/ranks.h"

namespace bonfire::testing::collective_programs_test {
namespace {

using comm::Reduce;

uint32_t first_seed() {
  const char* text = std::getenv("BONFIRE_SEED");
  return text == nullptr ? std::random_device()() : static_cast<uint32_t>(std::stoul(text));
}

// The same on all ranks, by the seed.
struct Draw {
  std::mt19937 engine;
  int below(int count) { return static_cast<int>(engine() % static_cast<uint32_t>(count)); }
};

// Applies `of_line` to the values of each line of ranks along the axis.
Arrays along(Axis axis, const Arrays& all, const Mesh& mesh, const MeshSizes& sizes,
             const std::function<Arrays(const Arrays&)>& of_line) {
  Arrays result(all.size());
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const std::vector<int> line = Mesh::of(rank, mesh.world(), sizes).ranks_along(axis);
    Arrays values;
    for (int member : line) values.push_back(all[static_cast<size_t>(member)]);
    const Arrays made = of_line(values);
    for (size_t i = 0; i < line.size(); ++i) result[static_cast<size_t>(line[i])] = made[i];
  }
  return result;
}

// One random step on the value of this rank and, by the definition, on those of all.
class Walk {
 public:
  Walk(Draw& draw, const Mesh& mesh, const MeshSizes& sizes, Device device) : draw_(draw), mesh_(mesh), sizes_(sizes) {
    const Shape shape{mesh.world() * (1 + draw.below(2)), 3, mesh.world()};
    for (int rank = 0; rank < mesh.world(); ++rank) all.push_back(whole_numbers(shape, rank, draw.below(5)));
    value = tensor_of(all[static_cast<size_t>(mesh.rank())], DType::f64, device);
  }

  Tensor value;
  Arrays all;

  std::string step() {
    const Axis axis = draw_.below(2) == 0 ? Axis::data : Axis::tensor;
    const int ranks = mesh_.size(axis), dim = draw_.below(3), other = draw_.below(3);
    const auto reduce = static_cast<Reduce>(draw_.below(3));
    const int kind = draw_.below(8);
    const int64_t extent = value.shape()[dim];
    switch (kind) {
      case 0:
        value = comm::all_reduce(value, axis, reduce);
        apply(axis, [&](const Arrays& line) { return all_reduced(line, reduce); });
        return fmt::format("all_reduce {} along {}", comm::name_of(reduce), name_of(axis));
      case 1:
        if (value.shape().count() > 20'000) return "nothing";
        value = comm::all_gather(value, axis, dim);
        apply(axis, [&](const Arrays& line) { return all_gathered(line, dim); });
        return fmt::format("all_gather {} along {}", dim, name_of(axis));
      case 2:
        if (extent % ranks != 0) return "nothing";
        value = comm::reduce_scatter(value, axis, dim, reduce);
        apply(axis, [&](const Arrays& line) { return reduce_scattered(line, dim, reduce); });
        return fmt::format("reduce_scatter {} {} along {}", comm::name_of(reduce), dim, name_of(axis));
      case 3:
        value = comm::broadcast(value, axis, other % ranks);
        apply(axis, [&](const Arrays& line) { return Arrays(line.size(), line[static_cast<size_t>(other % ranks)]); });
        return fmt::format("broadcast from {} along {}", other % ranks, name_of(axis));
      case 4:
        if (extent % ranks != 0) return "nothing";
        value = comm::all_to_all(value, axis, dim, other);
        apply(axis, [&](const Arrays& line) { return exchanged(line, dim, other); });
        return fmt::format("all_to_all {} {} along {}", dim, other, name_of(axis));
      case 5: return shift(axis, ranks == 1 ? 0 : 1 + other % (ranks - 1));
      case 6:
        value = lying_as(value, dim == 0 ? Shape{1, 2, 0} : dim == 1 ? Shape{2, 0, 1} : Shape{0, 2, 1});
        return fmt::format("another layout, {}", dim);
      default:
        value = value * 0.5 + (1.0 + static_cast<double>(mesh_.rank()));
        for (size_t rank = 0; rank < all.size(); ++rank)
          for (double& number : all[rank].values) number = number * 0.5 + (1.0 + static_cast<double>(rank));
        return "arithmetic";
    }
  }

 private:
  void apply(Axis axis, const std::function<Arrays(const Arrays&)>& of_line) {
    all = along(axis, all, mesh_, sizes_, of_line);
  }

  // To the rank so many places further.
  std::string shift(Axis axis, int by) {
    if (by == 0) return "nothing";
    const int ranks = mesh_.size(axis), here = mesh_.place(axis);
    const Tensor received = comm::receive(value.spec(), axis, (here + ranks - by) % ranks, {.tag = by});
    comm::send(value, axis, (here + by) % ranks, by);
    value = received;
    apply(axis, [&](const Arrays& line) {
      Arrays shifted;
      for (int i = 0; i < ranks; ++i) shifted.push_back(line[static_cast<size_t>((i + ranks - by) % ranks)]);
      return shifted;
    });
    return fmt::format("messages {} further along {}", by, name_of(axis));
  }

  Draw& draw_;
  const Mesh& mesh_;
  MeshSizes sizes_;
};

void run_programs(Rank& rank, const MeshSizes& sizes, Device device, uint32_t seed, int programs) {
  fleet::join(rank.group, sizes);
  for (int number = 0; number < programs; ++number) {
    Draw draw{std::mt19937(seed + static_cast<uint32_t>(number))};
    Walk walk(draw, fleet::mesh(), sizes, device);
    std::string text;
    std::vector<std::pair<Tensor, Array>> kept;  // some values on the way are asked for, too
    for (int i = 0; i < 12; ++i) {
      text += walk.step() + "; ";
      if (draw.below(4) == 0) kept.emplace_back(walk.value, walk.all[static_cast<size_t>(rank.rank())]);
      if (draw.below(6) == 0) commit();
    }
    kept.emplace_back(walk.value, walk.all[static_cast<size_t>(rank.rank())]);
    for (const auto& [value, expected] : kept) {
      const Array found = array_of(value);
      require(found.shape == expected.shape, fmt::format("seed {}: {}another shape", seed + number, text));
      for (size_t i = 0; i < found.values.size(); ++i)
        if (!(std::abs(found.values[i] - expected.values[i]) <= 1e-9 * (1 + std::abs(expected.values[i]))))
          require(false,
                  fmt::format("BONFIRE_SEED={}: {}element {} is {} instead of {}", seed + static_cast<uint32_t>(number),
                              text, i, found.values[i], expected.values[i]));
    }
  }
  fleet::leave();
}

TEST(CollectivePrograms, AreThoseOfOneRank) {
  const uint32_t seed = first_seed();
  std::printf("BONFIRE_SEED=%u\n", seed);
  const int programs = std::getenv("BONFIRE_SEED") == nullptr ? 25 : 1;
  for (const auto& [size, sizes] : {std::pair(2, MeshSizes{.tensor = 2}), std::pair(4, MeshSizes{.tensor = 2}),
                                    std::pair(6, MeshSizes{.tensor = 3}), std::pair(3, MeshSizes{})}) {
    expect_all_fine(run_ranks(Backend::local, size, [&, sizes = sizes](Rank& rank) {
      run_programs(rank, sizes, {DeviceType::cpu, static_cast<int16_t>(rank.rank())}, seed, programs);
    }));
  }
}

TEST(CollectivePrograms, AreThoseOfOneRankBetweenProcesses) {
  constexpr uint32_t kSeed = 20260;  // processes begin the test anew, and would draw others
  for (Backend backend : {Backend::shm})
    expect_all_fine(run_ranks(backend, 4, [&](Rank& rank) { run_programs(rank, {.tensor = 2}, {}, kSeed, 15); }));
}

}  // namespace
}  // namespace bonfire::testing::collective_programs_test
