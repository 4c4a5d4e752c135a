// Random small programs whose variables are split at random over the tensor axis: loss, gradients, the norm of clipping
// and new weights are those of one device. BONFIRE_SEED=N repeats one.
#include <cmath>
#include <cstdlib>
#include <random>

#include "bonfire/bonfire.h"
#include "tests/parallel/on_mesh.h"

namespace bonfire::tensor_programs_test {
namespace {

using Numbers = std::vector<double>;

double noise(uint64_t seed, int64_t index) {
  base::Hash128 hash;
  hash.mix(seed);
  hash.mix(static_cast<uint64_t>(index));
  return static_cast<double>(hash.low >> 11) / 9007199254740992.0 - 0.5;
}

Tensor numbers_of(const Shape& shape, uint64_t seed, Device device) {
  std::vector<double> values(static_cast<size_t>(shape.count()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = noise(seed, static_cast<int64_t>(i));
  return Tensor::from<double>(values, shape, device);
}

// One program, made of its seed alone: on a mesh each rank keeps its part of the variables.
class Program {
 public:
  Program(uint64_t seed, Device device, std::string& text)
      : random_(static_cast<std::mt19937::result_type>(seed)), device_(device), text_(text) {
    constexpr const char* kSteps[] = {"linear",  "activation",  "norm",      "attention", "scale",
                                      "softmax", "dropout",     "concat",    "split",     "rows",
                                      "center",  "convolution", "embedding", "transpose"};
    for (int i = 0, count = 2 + below(4); i < count; ++i) steps_.push_back(kSteps[below(std::size(kSteps))]);
    for (size_t i = 0; i < steps_.size(); ++i) residual_.push_back(below(2) == 0);
    trust_ = below(3);
    by_classes_ = below(2) == 0;
  }

  // Losses, norms and gradients of two updates, then all weights.
  std::vector<Numbers> run() {
    forward();  // makes the variables
    commit();
    made_ = true;
    std::vector<Numbers> found;
    auto keep = [&](const Tensor& value) { found.push_back(value.to_vector<double>()); };
    auto optimizer = make_optimizer();
    for (int step = 0; step < 2; ++step) {
      const Tensor loss = forward();
      loss.backward();
      const Tensor norm = optim::clip_grad_norm(variables_, 0.05);
      std::vector<Tensor> held{loss, norm};
      commit();
      if (step == 0)
        for (const Variable& variable : variables_) keep(fleet::gather(variable.grad_variable()));
      optimizer.step();
      optimizer.clear_grad();
      for (const Tensor& value : held) keep(value);
    }
    for (const Variable& variable : variables_) keep(fleet::gather(variable));
    return found;
  }

 private:
  int below(size_t count) { return static_cast<int>(random_() % count); }

  optim::Optimizer make_optimizer() const {
    std::vector<Parameter> parameters(variables_.begin(), variables_.end());
    // With a large eps, so that gradients which are 0 but for rounding make no steps.
    if (trust_ == 0) return optim::LAMB(parameters, {.lr = 0.01, .eps = 1, .weight_decay = 0.1});
    if (trust_ == 1) return optim::LARS(parameters, {.lr = 0.1, .momentum = 0.9, .eps = 1});
    return optim::Adam(parameters, {.lr = 0.01, .eps = 1});
  }

  // The next variable of the program; made when it is asked for first.
  Tensor weight(const Shape& shape, int64_t blocks = 1) {
    if (made_) return variables_[next_++].value();
    Variable variable({shape, DType::f64, device_}, fmt::format("v{}", variables_.size()));
    variable.set_first_values(
        first_values([seed = variables_.size() + 1](int64_t index) { return 0.8 * noise(seed, index) + 0.1; }));
    variable.set_requires_grad(true);
    const int axis = below(static_cast<size_t>(shape.rank()) + 1);
    const int64_t parts = fleet::mesh().size(Axis::tensor);
    const bool is_split = axis < shape.rank() && shape[axis] % (4 * blocks) == 0;
    text_ += fmt::format(" {}{}", to_string(shape), is_split ? fmt::format("/{}", axis) : "");
    if (is_split && parts > 1)
      variable.keep_slice(Slice::part(shape, axis, fleet::mesh().place(Axis::tensor), parts, axis == 0 ? blocks : 1));
    variables_.push_back(variable);
    return variable.value();
  }

  Tensor forward() {
    next_ = 0;
    Tensor h = numbers_of({4, 8, 16}, 99, device_);
    h = linear(h, weight({16, 16}), weight({16}));
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (!made_) text_ += fmt::format("\n  {}:", steps_[i]);
      const Tensor result = apply(steps_[i], h);
      h = residual_[i] && result.shape() == h.shape() ? h + result : result;
    }
    if (!by_classes_) return mean(square(h));
    const Tensor logits = linear(reshape(h, {h.size(0) * h.size(1), h.size(2)}), weight({12, h.size(2)}), weight({12}));
    std::vector<int64_t> target(static_cast<size_t>(logits.size(0)));
    for (size_t i = 0; i < target.size(); ++i) target[i] = i % 5 == 0 ? -100 : static_cast<int64_t>(i * 7 % 12);
    return cross_entropy(logits, Tensor::from<int64_t>(target, {logits.size(0)}, device_));
  }

  Tensor apply(const std::string& step, const Tensor& h) {
    const int64_t n = h.size(0), t = h.size(1), f = h.size(2);
    if (step == "linear") return linear(h, weight({16, f}), weight({16}));
    if (step == "activation") return gelu(h) * tanh(h);
    if (step == "norm") return layer_norm(h, weight({f}), weight({f}), {.rank = 1});
    if (step == "scale") return h * weight({f}) + weight({t, 1}) - h / exp(weight({1, t, f}));
    if (step == "softmax") return softmax(h, 2) + log_softmax(h, 1);
    if (step == "dropout") return dropout(h, 0.3, true);
    if (step == "concat") return linear(concat({h, sin(h) * h}, 2), weight({16, 2 * f}), Tensor());
    if (step == "rows") return slice(pad(h, {{0, 0}, {1, 0}, {0, 0}}), 1, 0, t) + max(h, {2}, {.keepdim = true});
    if (step == "center") return h - mean(h, {1}, {.keepdim = true}) - sum(h, {0}) * 0.1;
    if (step == "transpose") return transpose(h, 1, 2);
    if (step == "split") {
      const std::vector<Tensor> parts = split(linear(h, weight({48, f}, 3), weight({48}, 3)), 16, 2);
      return sin(parts[0]) * parts[1] + parts[2];
    }
    if (step == "attention") return attention(h);
    if (step == "embedding") {
      std::vector<int64_t> ids(static_cast<size_t>(n * t));
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * i % 24);
      return h + embedding(weight({24, f}), Tensor::from<int64_t>(ids, {n, t}, device_), {.padding_index = 4});
    }
    return convolution(h);
  }

  Tensor attention(const Tensor& h) {
    const int64_t f = h.size(2), heads = 4;
    auto by_heads = [&](const Tensor& x) {
      return permute(reshape(x, {x.size(0), x.size(1), heads, f / heads}), {0, 2, 1, 3});
    };
    const Tensor q = by_heads(linear(h, weight({f, f}), weight({f}))),
                 k = by_heads(linear(h, weight({f, f}), Tensor())),
                 v = by_heads(linear(h, weight({f, f}), weight({f})));
    const Tensor mixed = scaled_dot_product_attention(q, k, v, {.causal = true, .dropout = 0.2});
    return linear(flatten(permute(mixed, {0, 2, 1, 3}), 2), weight({f, f}), weight({f}));
  }

  Tensor convolution(const Tensor& h) {  // of t channels; then as many again, pooled and spread
    const int64_t n = h.size(0), t = h.size(1), f = h.size(2);
    Tensor image = reshape(h, {n, t, 4, f / 4});
    image = conv2d(image, weight({16, t, 3, 3}), weight({16}), {.padding = {1, 1}});
    image = relu(batch_norm(image, weight({16}), weight({16}), {}, {}, {}));
    image = conv2d(image, weight({16, 4, 1, 1}), Tensor(), {.groups = 4});
    image = conv2d(image, weight({t, 16, 1, 1}), weight({t}), {});
    image = image + broadcast_to(max_pool2d(avg_pool2d(image, {.kernel = {2}}), {.kernel = {2, f / 8}}), image.shape());
    return reshape(image, {n, t, f});
  }

  std::mt19937 random_;
  Device device_;
  std::string& text_;
  std::vector<std::string> steps_;
  std::vector<bool> residual_;
  int trust_ = 0;
  bool by_classes_ = false, made_ = false;
  std::vector<Variable> variables_;
  size_t next_ = 0;
};

void compare(const std::vector<Numbers>& found, const std::vector<Numbers>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].size(), expected[i].size()) << "value " << i;
    double largest = 1e-3;
    for (double value : expected[i]) largest = std::max(largest, std::abs(value));
    for (size_t j = 0; j < found[i].size(); ++j)
      ASSERT_NEAR(found[i][j], expected[i][j], 1e-9 * largest) << "value " << i << ", element " << j;
  }
}

TEST(TensorPrograms, AreThoseOfOneDeviceHoweverTheirVariablesAreSplit) {
  const char* given = std::getenv("BONFIRE_SEED");
  const uint64_t first = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  const uint64_t count = given != nullptr ? 1 : 12;
  for (uint64_t seed = first; seed < first + count && !::testing::Test::HasFailure(); ++seed) {
    std::vector<Numbers> expected;
    std::string text;
    auto run = [&](Device device, std::string& own) {
      manual_seed(seed);
      return Program(seed, device, own).run();
    };
    testing::on_mesh(1, {}, [&](Device device) { expected = run(device, text); });
    for (int parts : {2, 4}) {
      SCOPED_TRACE(fmt::format("BONFIRE_SEED={} on {} ranks:{}", seed, parts, text));
      std::vector<std::vector<Numbers>> found(static_cast<size_t>(parts));
      testing::on_mesh(parts, {.tensor = parts}, [&](Device device) {
        std::string own;
        found[static_cast<size_t>(device.index)] = run(device, own);
      });
      for (const auto& one : found) compare(one, expected);
    }
  }
}

}  // namespace
}  // namespace bonfire::tensor_programs_test
