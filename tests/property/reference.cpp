#include "tests/property/reference.h"

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <memory>

namespace bonfire::property {
namespace {

using Numbers = std::vector<double>;

// A value and how its gradient reaches what it was made of.
struct Made {
  Numbers value;
  bool requires_grad = false;
  int parameter = -1;  // of a leaf
  std::vector<std::shared_ptr<Made>> inputs = {};
  std::function<std::vector<Numbers>(const Numbers&)> pull = {};  // gradients of the inputs from its own
};
using MadePtr = std::shared_ptr<Made>;

struct Trained {
  Numbers value;
  bool requires_grad = true;
  bool has_gradient = false;
  Numbers gradient, velocity;
};

Numbers zip(const Numbers& a, const Numbers& b, const std::function<double(double, double)>& f) {
  Numbers result(a.size());
  for (size_t i = 0; i < a.size(); ++i) result[i] = f(a[i], b[i % b.size()]);
  return result;
}

constexpr auto kCount = static_cast<size_t>(kRows * kColumns);
constexpr auto kWidth = static_cast<size_t>(kColumns);

Numbers column_sums(const Numbers& x) {
  Numbers sums(kWidth);
  for (size_t i = 0; i < kCount; ++i) sums[i % kWidth] += x[i];
  return sums;
}

// [8, 4] x [4, 4], the second transposed if asked.
Numbers product(const Numbers& x, const Numbers& w, bool transposed) {
  Numbers y(kCount);
  for (size_t r = 0; r < static_cast<size_t>(kRows); ++r)
    for (size_t c = 0; c < kWidth; ++c)
      for (size_t k = 0; k < kWidth; ++k)
        y[r * kWidth + c] += x[r * kWidth + k] * (transposed ? w[c * kWidth + k] : w[k * kWidth + c]);
  return y;
}

Numbers weight_gradient(const Numbers& x, const Numbers& g) {
  Numbers w(kWidth * kWidth);
  for (size_t r = 0; r < static_cast<size_t>(kRows); ++r)
    for (size_t k = 0; k < kWidth; ++k)
      for (size_t c = 0; c < kWidth; ++c) w[k * kWidth + c] += x[r * kWidth + k] * g[r * kWidth + c];
  return w;
}

class Reference {
 public:
  Reference(const Program& program, double noise, uint64_t noise_seed)
      : program_(program), noise_(noise), noise_state_(noise_seed) {
    const int64_t counts[kParameters] = {16, 4, 16, 4, 4};
    for (int i = 0; i < kParameters; ++i)
      parameters_[static_cast<size_t>(i)].value = values(program.seed, i, counts[i]);
    for (int i = 0; i < kInputs; ++i) inputs_.push_back(values(program.seed, 50 + i, kRows * kColumns));
  }

  Answer run() {
    for (const Statement& statement : program_.statements) execute(statement);
    for (const Trained& parameter : parameters_) answer_.push_back(weighted_sum(parameter.value));
    answer_.push_back(weighted_sum(running_mean_));
    answer_.push_back(weighted_sum(running_variance_));
    for (const Trained& parameter : parameters_)
      answer_.push_back(parameter.has_gradient ? weighted_sum(parameter.gradient) : kNoGradient);
    return answer_;
  }

 private:
  MadePtr leaf(int index) {
    const Trained& parameter = parameters_[static_cast<size_t>(index)];
    return std::make_shared<Made>(Made{parameter.value, parameter.requires_grad, index});
  }

  void disturb(Numbers& numbers) {
    if (noise_ == 0) return;
    for (double& number : numbers) {
      noise_state_ = noise_state_ * 6364136223846793005ULL + 1442695040888963407ULL;
      number *= 1 + noise_ * (static_cast<double>(noise_state_ >> 40) / 8388608 - 1);
    }
  }

  MadePtr make(Numbers value, std::vector<MadePtr> inputs, std::function<std::vector<Numbers>(const Numbers&)> pull) {
    disturb(value);
    bool requires_grad = false;
    for (const MadePtr& input : inputs) requires_grad |= input->requires_grad;
    if (!requires_grad || no_grad_) return std::make_shared<Made>(Made{std::move(value)});
    return std::make_shared<Made>(Made{std::move(value), true, -1, std::move(inputs), std::move(pull)});
  }

  MadePtr normalised(const MadePtr& x) {
    MadePtr scale = leaf(3), shift = leaf(4);
    Numbers mean = running_mean_, variance = running_variance_;
    const double rows = kRows;
    if (training_) {
      mean = column_sums(x->value);
      for (double& m : mean) m /= rows;
      Numbers centred = zip(x->value, mean, std::minus<>());
      variance = column_sums(zip(centred, centred, std::multiplies<>()));
      for (double& v : variance) v /= rows;
      for (size_t c = 0; c < kWidth; ++c) {
        running_mean_[c] += 0.1 * (mean[c] - running_mean_[c]);
        running_variance_[c] += 0.1 * (variance[c] * rows / (rows - 1) - running_variance_[c]);
      }
    }
    Numbers inverse(kWidth);
    for (size_t c = 0; c < kWidth; ++c) inverse[c] = 1 / std::sqrt(variance[c] + 1e-5);
    Numbers hat = zip(zip(x->value, mean, std::minus<>()), inverse, std::multiplies<>());
    Numbers y = zip(zip(hat, scale->value, std::multiplies<>()), shift->value, std::plus<>());
    auto pull = [=, training = training_](const Numbers& g) {
      Numbers of_scale = column_sums(zip(g, hat, std::multiplies<>())), of_shift = column_sums(g);
      Numbers of_x(kCount);
      for (size_t i = 0; i < kCount; ++i) {
        const size_t c = i % kWidth;
        const double centred = training ? g[i] - of_shift[c] / rows - hat[i] * of_scale[c] / rows : g[i];
        of_x[i] = scale->value[c] * inverse[c] * centred;
      }
      return std::vector<Numbers>{of_x, of_scale, of_shift};
    };
    return make(std::move(y), {x, scale, shift}, pull);
  }

  MadePtr apply(OpKind kind, const MadePtr& a, const MadePtr& b) {
    const Numbers &x = a->value, &z = b->value;
    switch (kind) {
      case OpKind::tanh: {
        Numbers y = zip(x, x, [](double v, double) { return std::tanh(v); });
        return make(y, {a}, [y](const Numbers& g) {
          return std::vector<Numbers>{zip(g, y, [](double d, double v) { return d * (1 - v * v); })};
        });
      }
      case OpKind::sigmoid: {
        Numbers y = zip(x, x, [](double v, double) { return 1 / (1 + std::exp(-v)); });
        return make(y, {a}, [y](const Numbers& g) {
          return std::vector<Numbers>{zip(g, y, [](double d, double v) { return d * v * (1 - v); })};
        });
      }
      case OpKind::add:
        return make(zip(x, z, std::plus<>()), {a, b}, [](const Numbers& g) { return std::vector<Numbers>{g, g}; });
      case OpKind::subtract:
        return make(zip(x, z, std::minus<>()), {a, b}, [](const Numbers& g) {
          return std::vector<Numbers>{g, zip(g, {-1}, std::multiplies<>())};
        });
      case OpKind::multiply:
        return make(zip(x, z, std::multiplies<>()), {a, b}, [x, z](const Numbers& g) {
          return std::vector<Numbers>{zip(g, z, std::multiplies<>()), zip(g, x, std::multiplies<>())};
        });
      case OpKind::matmul_weight:
      case OpKind::matmul_other: {
        MadePtr w = leaf(kind == OpKind::matmul_weight ? 0 : 2);
        return make(product(x, w->value, false), {a, w}, [x, w](const Numbers& g) {
          return std::vector<Numbers>{product(g, w->value, true), weight_gradient(x, g)};
        });
      }
      case OpKind::add_bias: {
        MadePtr bias = leaf(1);
        return make(zip(x, bias->value, std::plus<>()), {a, bias}, [](const Numbers& g) {
          return std::vector<Numbers>{g, column_sums(g)};
        });
      }
      case OpKind::multiply_bias: {
        MadePtr bias = leaf(1);
        return make(zip(x, bias->value, std::multiplies<>()), {a, bias}, [x, bias](const Numbers& g) {
          return std::vector<Numbers>{zip(g, bias->value, std::multiplies<>()),
                                      column_sums(zip(g, x, std::multiplies<>()))};
        });
      }
      case OpKind::norm: return normalised(a);
      case OpKind::detach: return std::make_shared<Made>(Made{x});
      case OpKind::half:
        return make(zip(x, {0.5}, std::multiplies<>()), {a},
                    [](const Numbers& g) { return std::vector<Numbers>{zip(g, {0.5}, std::multiplies<>())}; });
    }
    return a;
  }

  MadePtr forward(const Statement& statement, int input) {
    no_grad_ = statement.flag;
    std::vector<MadePtr> made = {std::make_shared<Made>(Made{inputs_[static_cast<size_t>(input)]})};
    auto operand = [&](int number) {
      return number >= kKept ? kept_.at(number - kKept) : made[static_cast<size_t>(number)];
    };
    for (const ForwardOp& op : statement.ops) made.push_back(apply(op.kind, operand(op.a), operand(op.b)));
    if (statement.keep >= 0) kept_[statement.index] = made[static_cast<size_t>(statement.keep) + 1];
    MadePtr last = apply(OpKind::tanh, made.back(), made.back());
    Numbers y = last->value;
    double mean = 0;
    for (double v : y) mean += v * v / static_cast<double>(kCount);
    MadePtr loss = make({mean}, {last}, [y](const Numbers& g) {
      return std::vector<Numbers>{
          zip(y, g, [](double v, double d) { return d * 2 * v / static_cast<double>(kCount); })};
    });
    no_grad_ = false;
    return loss;
  }

  // Users before inputs.
  static void order(const MadePtr& one, std::map<const Made*, bool>& seen, std::vector<MadePtr>& list) {
    if (!one->requires_grad || seen[one.get()]) return;
    seen[one.get()] = true;
    for (const MadePtr& input : one->inputs) order(input, seen, list);
    list.push_back(one);
  }

  void backward(const MadePtr& loss) {
    if (!loss->requires_grad) return;
    std::map<const Made*, bool> seen;
    std::vector<MadePtr> list;
    order(loss, seen, list);
    std::map<const Made*, Numbers> gradients;
    gradients[loss.get()] = {1};
    for (auto one = list.rbegin(); one != list.rend(); ++one) {
      const Numbers gradient = gradients[one->get()];
      if ((*one)->parameter >= 0) {
        deliver(parameters_[static_cast<size_t>((*one)->parameter)], gradient);
        continue;
      }
      std::vector<Numbers> of_inputs = (*one)->pull(gradient);
      for (size_t i = 0; i < of_inputs.size(); ++i) {
        disturb(of_inputs[i]);
        Numbers& sum = gradients[(*one)->inputs[i].get()];
        sum = sum.empty() ? of_inputs[i] : zip(sum, of_inputs[i], std::plus<>());
      }
    }
  }

  static void deliver(Trained& parameter, const Numbers& gradient) {
    if (!parameter.requires_grad) return;
    parameter.gradient = parameter.has_gradient ? zip(parameter.gradient, gradient, std::plus<>()) : gradient;
    parameter.has_gradient = true;
  }

  void step() {
    for (Trained& parameter : parameters_) {
      if (!parameter.has_gradient) continue;
      if (parameter.velocity.empty()) parameter.velocity.assign(parameter.value.size(), 0);
      for (size_t i = 0; i < parameter.value.size(); ++i) {
        const double gradient = parameter.gradient[i] + program_.weight_decay * parameter.value[i];
        parameter.velocity[i] = program_.momentum * parameter.velocity[i] + gradient;
        parameter.value[i] -= program_.lr * parameter.velocity[i];
      }
    }
  }

  void call(const std::vector<Statement>& block, int input) {
    std::map<int, MadePtr> own;
    for (const Statement& statement : block) {
      if (statement.what == What::forward) {
        own[statement.index] = forward(statement, input);
      } else if (statement.what == What::backward) {
        backward(own.at(statement.index));
      } else {
        execute(statement);
      }
    }
    for (const auto& [index, loss] : own) answer_.push_back(loss->value[0]);
  }

  void execute(const Statement& statement) {
    Trained& parameter = parameters_[static_cast<size_t>(statement.index % kParameters)];
    switch (statement.what) {
      case What::forward: losses_[statement.index] = forward(statement, statement.input); break;
      case What::backward: backward(losses_.at(statement.index)); break;
      case What::read: answer_.push_back(losses_.at(statement.index)->value[0]); break;
      case What::drop:
        losses_.erase(statement.index);
        kept_.erase(statement.index);
        break;
      case What::step: step(); break;
      case What::clear:
        for (Trained& one : parameters_) one.has_gradient = false;
        break;
      case What::mode: training_ = statement.flag; break;
      case What::freeze: parameter.requires_grad = statement.flag; break;
      case What::load:
        parameter.value = values(program_.seed, statement.input, static_cast<int64_t>(parameter.value.size()));
        break;
      case What::hold: held_ = parameter.value; break;
      case What::read_held: answer_.push_back(weighted_sum(held_)); break;
      case What::read_grad:
        answer_.push_back(parameter.has_gradient ? weighted_sum(parameter.gradient) : kNoGradient);
        break;
      case What::block: call(program_.blocks[static_cast<size_t>(statement.index)], statement.input); break;
      case What::thread: break;  // all the same
    }
  }

  const Program& program_;
  double noise_;
  uint64_t noise_state_;
  std::array<Trained, kParameters> parameters_;
  Numbers running_mean_ = Numbers(kWidth, 0), running_variance_ = Numbers(kWidth, 1), held_;
  std::vector<Numbers> inputs_;
  std::map<int, MadePtr> losses_, kept_;
  bool training_ = true, no_grad_ = false;
  Answer answer_;
};

}  // namespace

Answer run_reference(const Program& program, double noise, uint64_t noise_seed) {
  return Reference(program, noise, noise_seed).run();
}

}  // namespace bonfire::property
