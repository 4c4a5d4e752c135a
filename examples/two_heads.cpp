// A detector's two heads on two devices: one body finds features, and the classes and the boxes that are made of them
// do not depend on each other, so both heads run at the same time, in the backward pass too.
//
//   build/release/examples/two_heads [STEPS] [BODY CLASSES BOXES]
//
// By default it takes 100 steps with the body and the head of classes on cpu:0, and the head of boxes on cpu:1. The
// losses are those of one device: two_heads 100 cpu:0 cpu:0 cpu:0.
#include <bonfire/bonfire.h>

#include <cstdio>
#include <cstdlib>

using namespace bonfire;

class Head : public nn::Callable<Head> {
 public:
  explicit Head(int64_t outputs)
      : Callable("Head"), out_(register_module("out", nn::Linear({.in = 256, .out = outputs}))) {}
  Tensor forward(const Tensor& x) const { return out_(relu(hidden_(x))); }

 private:
  nn::Linear hidden_ = register_module("hidden", nn::Linear({.in = 32 * 7 * 7, .out = 256}));
  nn::Linear out_;
};

class Detector : public nn::Callable<Detector> {
 public:
  Detector() : Callable("Detector") {}
  std::pair<Tensor, Tensor> forward(const Tensor& x) const {  // [N, 1, 28, 28] → classes [N, 10], boxes [N, 4]
    const Tensor features = flatten(body(x), 1);
    return {classes(features), boxes(features)};
  }

  nn::Sequential body = register_module(
      "body",
      nn::Sequential({nn::Conv2d({.in = 1, .out = 16, .kernel = {3}, .stride = {2}, .padding = {1}}), nn::ReLU(),
                      nn::Conv2d({.in = 16, .out = 32, .kernel = {3}, .stride = {2}, .padding = {1}}), nn::ReLU()}));
  Head classes = register_module("classes", Head(10));
  Head boxes = register_module("boxes", Head(4));
};

void train(int64_t steps, const char* body, const char* classes, const char* boxes) {
  data::DataLoader digits(std::make_shared<data::Glyphs>(), {.batch_size = 64});
  manual_seed(1);
  Detector model;
  model.body.to(body);
  model.classes.to(classes);
  model.boxes.to(boxes);
  optim::Momentum optimizer(model.parameters(), {.lr = 0.02, .momentum = 0.9});  // after the modules have been moved
  auto step = compile([&](const Tensor& image, const Tensor& label) {
    const Tensor half = full({1}, 0.5);
    const Tensor pixels = normalize_image(image, half, half, {.channels_last = true});
    const auto [logits, box] = model(pixels);
    // Where the ink begins and ends, as a stand-in for boxes: the mean of each quarter.
    const Tensor quarters = reshape(mean(reshape(pixels, {pixels.size(0), 2, 14, 2, 14}), {2, 4}), {-1, 4});
    Tensor loss = cross_entropy(logits, label) + smooth_l1_loss(box, quarters).to(logits.device());
    loss.backward();
    optimizer.step();
    optimizer.clear_grad();
    return loss;
  });
  for (int64_t i = 1; i <= steps; ++i) {
    const auto [image, label] = digits.next();
    const Tensor loss = step(image, label);
    if (i % 25 == 0 || i == steps) std::printf("step: %ld, loss is: %.6f\n", static_cast<long>(i), loss.item());
  }
}

int main(int argc, char** argv) try {
  const bool given = argc > 4;
  train(argc > 1 ? std::atoi(argv[1]) : 100, given ? argv[2] : "cpu:0", given ? argv[3] : "cpu:0",
        given ? argv[4] : "cpu:1");
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
