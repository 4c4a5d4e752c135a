// An op of one's own, outside the library: shape rule, gradient and CPU kernel in one file. It is softsign, x / (1 +
// |x|), an activation. Then a small network that uses it learns a curve.
#include <bonfire/bonfire.h>

#include <cmath>
#include <cstdio>

using namespace bonfire;

// 1. What the op is. The gradient is built from ops, so it runs on every device that has those.
OutputSpecs infer_softsign(const InferContext& context) {
  const TensorSpec& x = context.input(0);
  if (x.dtype != DType::f32) throw_error<ShapeError>("[softsign] input is {}, expected f32", describe_inputs(context));
  return {x};
}

Tensors softsign_gradient(const GradientContext& c) {
  return {c.gradient() / square(1.0 + absolute(c.input(0)))};  // d/dx = 1 / (1 + |x|)²
}

const Op& softsign_op = register_op({.name = "softsign", .infer = infer_softsign, .gradient = softsign_gradient});

Tensor softsign(const Tensor& x) { return trace_op(softsign_op, {x}); }

// 2. How the CPU computes it.
const bool kOnCpu = register_kernel("softsign", DeviceType::cpu, [](const KernelRequest& request) {
  return one_candidate(request, [count = request.node.outputs[0].shape.count()](const Run& run) {
    const float* x = run.input<float>(0);
    float* y = run.output<float>();
    constexpr int64_t kGrain = 16384;  // elements worth a thread of their own
    run.threads->parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) y[i] = x[i] / (1 + std::fabs(x[i]));
    });
  });
});

// How far the gradient is from a difference quotient.
float gradient_error(float at) {
  constexpr float kStep = 1e-2F;
  Tensor x = Tensor::from<float>({at - kStep, at, at + kStep}, {3});
  x.set_requires_grad(true);
  Tensor y = softsign(x);
  std::vector<float> values = y.to_vector<float>();
  sum(y).backward();
  return std::fabs(x.grad().to_vector<float>()[1] - (values[2] - values[0]) / (2 * kStep));
}

int main() {
  std::printf("gradient against a difference quotient: off by %.1e at 0.7, by %.1e at -2\n", gradient_error(0.7F),
              gradient_error(-2.0F));

  // sin on [-3, 3], from 64 points.
  std::vector<float> points(64);
  for (size_t i = 0; i < points.size(); ++i) points[i] = -3 + 6 * static_cast<float>(i) / 63;
  Tensor x = Tensor::from<float>(points, {64, 1});
  Tensor target = sin(x);

  manual_seed(1);
  nn::Linear hidden({.in = 1, .out = 32}), out({.in = 32, .out = 1});
  std::vector<Parameter> parameters = hidden.parameters();
  for (const Parameter& parameter : out.parameters()) parameters.push_back(parameter);
  optim::Adam optimizer(parameters, {.lr = 0.02});
  for (int step = 0; step <= 400; ++step) {
    Tensor loss = nn::mse_loss(out(softsign(hidden(x))), target);
    loss.backward();
    optimizer.step();
    optimizer.clear_grad();
    if (step % 100 == 0) std::printf("step: %d, loss is: %.5f\n", step, loss.item());
  }
}
