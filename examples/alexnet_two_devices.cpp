// AlexNet as it was published (Krizhevsky, Sutskever and Hinton, 2012): its layers in two halves, one on each of two
// devices, because one device's memory was too small for both. The halves exchange what they have computed where the
// paper's do: before the third convolution and before each of the three dense layers. The second, fourth and fifth
// convolution see their own half alone.
//
//   build/release/examples/alexnet_two_devices [STEPS] [WIDTH] [FIRST SECOND]
//
// WIDTH is the share of the paper's channels, 1 unless given: with 0.125 a step takes no time. By default the halves
// are on cpu:0 and cpu:1.
#include <bonfire/bonfire.h>

#include <cstdio>
#include <cstdlib>

using namespace bonfire;

// The paper's sizes, of a half.
struct Sizes {
  explicit Sizes(double width) : width(width) {}
  int64_t operator()(int64_t channels) const {
    return std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(channels) * width));
  }
  double width;
};

nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t padding, int64_t stride = 1) {
  return nn::Conv2d({.in = in, .out = out, .kernel = {kernel}, .stride = {stride}, .padding = {padding}});
}

// A layer that sees both halves. What comes from the other one is copied to its device.
template <class Layer>
class Joined : public nn::Callable<Joined<Layer>> {
 public:
  explicit Joined(Layer layer)
      : nn::Callable<Joined<Layer>>("Joined"), layer_(this->register_module("layer", std::move(layer))) {}
  Tensor forward(const Tensor& own, const Tensor& other) const { return layer_(concat({own, other}, 1)); }

 private:
  Layer layer_;
};

class Half : public nn::Callable<Half> {
 public:
  explicit Half(Sizes n)
      : Callable("Half"),
        first(register_module("first", nn::Sequential({conv(3, n(48), 11, 2, 4), nn::ReLU(), pool(),
                                                       conv(n(48), n(128), 5, 2), nn::ReLU(), pool()}))),
        third(register_module("third", Joined(conv(2 * n(128), n(192), 3, 1)))),
        last(register_module("last", nn::Sequential({nn::ReLU(), conv(n(192), n(192), 3, 1), nn::ReLU(),
                                                     conv(n(192), n(128), 3, 1), nn::ReLU(), pool()}))),
        dense6(register_module("dense6", Joined(nn::Linear({.in = 2 * n(128) * 6 * 6, .out = n(2048)})))),
        dense7(register_module("dense7", Joined(nn::Linear({.in = 2 * n(2048), .out = n(2048)})))) {}
  static nn::MaxPool2d pool() { return nn::MaxPool2d({.kernel = {3}, .stride = {2}}); }

  nn::Sequential first;
  Joined<nn::Conv2d> third;
  nn::Sequential last;
  Joined<nn::Linear> dense6, dense7;
};

class AlexNetHalves : public nn::Callable<AlexNetHalves> {
 public:
  AlexNetHalves(Sizes n, int64_t classes)
      : Callable("AlexNetHalves"),
        one(register_module("one", Half(n))),
        two(register_module("two", Half(n))),
        dense8(register_module("dense8", Joined(nn::Linear({.in = 2 * n(2048), .out = classes})))) {}

  Tensor forward(const Tensor& x) const {  // [N, 3, 224, 224]
    Tensor a = one.first(x), b = two.first(x);
    exchange(a, b, one.third, two.third);
    a = flatten(one.last(a), 1);
    b = flatten(two.last(b), 1);
    exchange(a, b, one.dense6, two.dense6);
    a = relu(a);
    b = relu(b);
    exchange(a, b, one.dense7, two.dense7);
    return dense8(relu(a), relu(b));
  }

  Half one, two;
  Joined<nn::Linear> dense8;

 private:
  template <class Layer>
  static void exchange(Tensor& a, Tensor& b, const Layer& of_one, const Layer& of_two) {
    Tensor next = of_one(a, b);
    b = of_two(b, a);
    a = std::move(next);
  }
};

void train(int64_t steps, double width, const char* first, const char* second) {
  constexpr int64_t kClasses = 10, kBatch = 8;
  manual_seed(1);
  AlexNetHalves model(Sizes(width), kClasses);
  model.one.to(first);
  model.two.to(second);
  model.dense8.to(first);
  optim::Momentum optimizer(model.parameters(), {.lr = 0.01, .momentum = 0.9, .weight_decay = 5e-4});
  auto step = compile([&](const Tensor& image, const Tensor& label) {
    Tensor loss = cross_entropy(model(image), label);
    loss.backward();
    optimizer.step();
    optimizer.clear_grad();
    return loss;
  });
  const Tensor image = normal_random({kBatch, 3, 224, 224}), label = arange(0, kBatch);  // the same ones at each step
  for (int64_t i = 1; i <= steps; ++i) {
    const Tensor loss = step(image, label);
    std::printf("step: %ld, loss is: %.6f\n", static_cast<long>(i), loss.item());
  }
}

int main(int argc, char** argv) try {
  const bool given = argc > 4;
  train(argc > 1 ? std::atoi(argv[1]) : 10, argc > 2 ? std::atof(argv[2]) : 1, given ? argv[3] : "cpu:0",
        given ? argv[4] : "cpu:1");
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
