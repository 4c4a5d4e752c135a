// A loop whose graph differs from step to step: how often the middle layer is applied depends on a value that the step
// itself computes. Ordinary C++ decides; each new graph is compiled once and found again afterwards.
#include <bonfire/bonfire.h>

#include <cstdio>

using namespace bonfire;

// Says why a plan was compiled, if one was since the last call.
void tell_new_plan() {
  static uint64_t told = 0;
  runtime::CacheStatistics plans = runtime::cache_statistics();
  if (plans.compiled > told) std::printf("  plan %d: %s\n", int(plans.compiled), plans.last_reason.c_str());
  told = plans.compiled;
}

class Net : public nn::Callable<Net> {
 public:
  Net() : Callable("Net") {}

  struct Result {
    Tensor value;
    int depth;  // how many layers the state went through
  };

  Result forward(const Tensor& x) const {
    Tensor state = tanh(first_(x));
    int depth = 1;
    while (depth < 4 && is_large(state)) {
      state = tanh(middle_(state) * 0.9);
      ++depth;
    }
    return {last_(state), depth};
  }

 private:
  // Reading a value runs what is pending; what comes after it is a graph of its own.
  static bool is_large(const Tensor& state) {
    bool answer = mean(square(state)).item() > 0.25;
    tell_new_plan();
    return answer;
  }

  nn::Linear first_ = register_module("first", nn::Linear({.in = 4, .out = 16}));
  nn::Linear middle_ = register_module("middle", nn::Linear({.in = 16, .out = 16}));
  nn::Linear last_ = register_module("last", nn::Linear({.in = 16, .out = 1}));
};

int main() {
  manual_seed(7);
  Net net;
  optim::SGD optimizer(net.parameters(), {.lr = 0.02});
  for (int step = 0; step < 60; ++step) {
    Tensor x = uniform_random({32, 4}) * (1.0 + step % 5);
    auto [value, depth] = net(x);
    Tensor loss = nn::mse_loss(value, sum(x, {1}, {.keepdim = true}));
    loss.backward();
    optimizer.step();
    optimizer.clear_grad();
    tell_new_plan();
    if (step < 10 || step % 10 == 0) std::printf("step: %d, depth: %d, loss is: %.4f\n", step, depth, loss.item());
  }
  runtime::CacheStatistics plans = runtime::cache_statistics();
  std::printf("compiled plans: %d, cache hits: %d\n", int(plans.compiled), int(plans.hits));
}
