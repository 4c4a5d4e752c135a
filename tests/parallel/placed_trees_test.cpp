// Random trees of modules in random places, against the same tree on one device.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>

#include "bonfire/base/random.h"
#include "tests/parallel/placed.h"

namespace bonfire::placed_trees_test {
namespace {

using testing::last_training_plan;
using testing::PlacedCase;
using testing::train;
using testing::Trained;

constexpr int64_t kWidth = 6;

class Tree;
using Children = std::vector<Tree>;

// A module of one of these kinds, from [N, kWidth] to [N, kWidth].
class Tree : public nn::Callable<Tree> {
 public:
  enum class Kind : uint8_t { linear, norm, tanh, dropout, chain, residual, product, sum };

  Tree(Kind kind, Children children) : Callable("Tree"), kind_(kind), children_(std::make_shared<Children>()) {
    if (kind == Kind::linear) linear_ = register_module("linear", nn::Linear({.in = kWidth, .out = kWidth}));
    if (kind == Kind::norm) norm_ = register_module("norm", nn::LayerNorm({.shape = {kWidth}}));
    for (Tree& child : children)
      children_->push_back(register_module(std::to_string(children_->size()), std::move(child)));
  }

  Tensor forward(const Tensor& x) const {
    const Children& inside = *children_;
    switch (kind_) {
      case Kind::linear: return (*linear_)(x);
      case Kind::norm: return (*norm_)(x);
      case Kind::tanh: return bonfire::tanh(x);
      case Kind::dropout: return bonfire::dropout(x, 0.3, training());
      case Kind::residual: return x + inside[0](x);
      case Kind::product: return inside[0](x) * inside[1](x);
      case Kind::sum: {
        Tensor all = inside[0](x);
        for (size_t i = 1; i < inside.size(); ++i) all = all + inside[i](x);
        return all;
      }
      case Kind::chain: break;
    }
    Tensor y = x;
    for (const Tree& child : inside) y = child(y);
    return y;
  }

 private:
  Kind kind_;
  std::optional<nn::Linear> linear_;
  std::optional<nn::LayerNorm> norm_;
  std::shared_ptr<Children> children_;
};

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int below(int count) { return static_cast<int>(engine_() % static_cast<uint64_t>(count)); }

  Tree tree(int depth) {
    using Kind = Tree::Kind;
    if (depth == 0) return Tree(static_cast<Kind>(below(4)), {});
    const auto kind = static_cast<Kind>(4 + below(4));
    const int count = kind == Kind::residual ? 1 : kind == Kind::product ? 2 : 2 + below(2);
    Children children;
    for (int i = 0; i < count; ++i) children.push_back(tree(std::max(0, depth - 1 - below(2))));
    return Tree(kind, std::move(children));
  }

  Placement placement(const nn::Module& model, int devices) {
    Placement chosen;
    std::function<void(const nn::Module&, const std::string&)> visit = [&](const nn::Module& module,
                                                                           const std::string& path) {
      if (!path.empty() && below(3) == 0) chosen[path] = "cpu:" + std::to_string(below(devices));
      for (const auto& [name, child] : module.named_children()) visit(child, path.empty() ? name : path + "." + name);
    };
    visit(model, "");
    return chosen;
  }

 private:
  std::mt19937_64 engine_;
};

// One linear layer around the tree, so that there is always something to train.
class Whole : public nn::Callable<Whole> {
 public:
  explicit Whole(Tree tree) : Callable("Whole"), tree_(register_module("tree", std::move(tree))) {}
  Tensor forward(const Tensor& x) const { return tree_(first_(x)); }

 private:
  nn::Linear first_ = register_module("first", nn::Linear({.in = kWidth, .out = kWidth}));
  Tree tree_;
};

PlacedCase case_of(uint64_t seed) {
  return {.name = "tree",
          .make = [seed]() -> std::pair<nn::Module, PlacedCase::Loss> {
            const Whole model(Random(seed).tree(3));
            return {model, [model](const Tensor& x, const Tensor& y) { return mean(square(tanh(model(x)) - y)); }};
          },
          .batch =
              [](int step) {
                auto numbers = [&](uint64_t stream) {
                  std::vector<float> values(4 * kWidth);
                  for (size_t i = 0; i < values.size(); ++i)
                    values[i] = normal_at(stream, static_cast<uint64_t>(step), i) / 2;
                  return Tensor::from<float>(values, {4, kWidth});
                };
                return std::pair(numbers(1), numbers(2));
              },
          .placements = {}};
}

TEST(PlacedTrees, TrainAsOnOneDevice) {
  const uint64_t first = std::random_device()();
  int several = 0;
  for (uint64_t seed = first; seed < first + 25; ++seed) {
    const PlacedCase one = case_of(seed);
    Random random(seed + 1);
    const Placement placement = random.placement(one.make().first, 2 + static_cast<int>(seed % 2));
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + to_string(placement));
    for (bool compiled : {false, true}) {
      const Trained whole = train(one, {}, {.compiled = compiled});
      const Trained placed = train(one, placement, {.compiled = compiled});
      several += last_training_plan()->programs.size() > 1 ? 1 : 0;
      // Chains of elementwise ops that are merged on one device may be rounded otherwise in two parts.
      for (size_t i = 0; i < whole.losses.size(); ++i)
        ASSERT_NEAR(placed.losses[i], whole.losses[i], 1e-5 * std::max(1.0, std::abs(whole.losses[i])));
    }
  }
  EXPECT_GT(several, 20);
}

}  // namespace
}  // namespace bonfire::placed_trees_test
