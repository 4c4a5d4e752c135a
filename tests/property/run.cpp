#include "tests/property/run.h"

#include <map>
#include <thread>

#include "bonfire/bonfire.h"
#include "bonfire/graph/trace.h"

namespace bonfire::property {
namespace {

Device second_of(const Program& program) {
  return {DeviceType::cpu, static_cast<int16_t>(program.two_devices ? 1 : 0)};
}

std::vector<float> floats(const std::vector<double>& list) { return {list.begin(), list.end()}; }

double weighted_sum_of(const Tensor& tensor) { return weighted_sum(tensor.to_vector<double>()); }

struct CheckNumbers {
  explicit CheckNumbers(bool on) { set_check_numbers(on); }
  ~CheckNumbers() { set_check_numbers(false); }
};

class Runner {
 public:
  Runner(const Program& program, How how) : program_(program), how_(how), second_(second_of(program)) {
    const Shape shapes[kParameters] = {{4, 4}, {4}, {4, 4}, {4}, {4}};
    for (int i = 0; i < kParameters; ++i) {
      Parameter parameter = i < 3 ? Parameter(Variable(TensorSpec{shapes[i], DType::f32, i == 2 ? second_ : Device{}}))
                                  : norm_.parameters()[static_cast<size_t>(i) - 3];
      parameters_.push_back(parameter);
      load(i, i);
    }
    for (int i = 0; i < kInputs; ++i)
      inputs_.push_back(Tensor::from<float>(floats(values(program.seed, 50 + i, kRows * kColumns)), {kRows, kColumns}));
    optimizer_.emplace(
        parameters_,
        optim::MomentumOptions{.lr = program.lr, .momentum = program.momentum, .weight_decay = program.weight_decay});
    for (const std::vector<Statement>& block : program.blocks) {
      auto body = [this, &block](const Tensor& input) { return run_block(block, input); };
      compiled_.push_back(compile(body));
    }
  }

  Answer run() {
    run_all(program_.statements);
    for (const Parameter& parameter : parameters_) answer_.push_back(weighted_sum_of(parameter.value()));
    for (const auto& [name, buffer] : norm_.named_buffers())
      if (is_floating(buffer.dtype())) answer_.push_back(weighted_sum_of(buffer.value()));
    for (int i = 0; i < kParameters; ++i) read_gradient(i);
    return answer_;
  }

 private:
  const Parameter& parameter(int index) const { return parameters_[static_cast<size_t>(index)]; }

  void load(int index, int stream) {
    const std::vector<float> numbers = floats(values(program_.seed, stream, parameter(index).shape().count()));
    parameter(index).load(std::as_bytes(std::span<const float>(numbers)));
  }

  void read_gradient(int index) {
    Tensor gradient = parameter(index).grad();
    answer_.push_back(gradient.defined() ? weighted_sum_of(gradient) : kNoGradient);
  }

  Tensor apply(OpKind kind, const Tensor& a, const Tensor& b) {
    switch (kind) {
      case OpKind::tanh: return tanh(a);
      case OpKind::sigmoid: return sigmoid(a);
      case OpKind::add: return a + b;
      case OpKind::subtract: return a - b;
      case OpKind::multiply: return a * b;
      case OpKind::matmul_weight: return matmul(a, parameter(0).value());
      case OpKind::matmul_other: return matmul(a.to(second_), parameter(2).value()).to(Device{});
      case OpKind::add_bias: return a + parameter(1).value();
      case OpKind::multiply_bias: return a * parameter(1).value();
      case OpKind::norm: return norm_(a);
      case OpKind::detach: return a.detach();
      case OpKind::half: return a * 0.5;
    }
    return a;
  }

  Tensor forward(const Statement& statement, const Tensor& input) {
    std::optional<NoGrad> no_grad;
    if (statement.flag) no_grad.emplace();
    std::vector<Tensor> made = {input};
    auto operand = [&](int number) {
      return number >= kKept ? kept_.at(number - kKept) : made[static_cast<size_t>(number)];
    };
    for (const ForwardOp& op : statement.ops) made.push_back(apply(op.kind, operand(op.a), operand(op.b)));
    if (statement.keep >= 0) kept_[statement.index] = made[static_cast<size_t>(statement.keep) + 1];
    return mean(square(tanh(made.back())));
  }

  static void backward(const Tensor& loss, bool retain) {
    if (loss.requires_grad()) loss.backward({.retain_graph = retain});
  }

  std::vector<Tensor> run_block(const std::vector<Statement>& block, const Tensor& input) {
    std::map<int, Tensor> own;
    for (const Statement& statement : block) {
      if (statement.what == What::forward) {
        own[statement.index] = forward(statement, input);
      } else if (statement.what == What::backward) {
        backward(own.at(statement.index), statement.flag);
      } else {
        execute(statement);
      }
    }
    std::vector<Tensor> losses;
    for (const auto& [index, loss] : own) losses.push_back(loss);
    return losses;
  }

  void call(const Statement& statement) {
    const auto block = static_cast<size_t>(statement.index);
    const Tensor& input = inputs_[static_cast<size_t>(statement.input)];
    for (const Tensor& loss :
         how_ == How::compiled ? compiled_[block](input) : run_block(program_.blocks[block], input))
      answer_.push_back(loss.item());
  }

  void execute(const Statement& statement) {
    switch (statement.what) {
      case What::forward:
        losses_[statement.index] = forward(statement, inputs_[static_cast<size_t>(statement.input)]);
        break;
      case What::backward: backward(losses_.at(statement.index), statement.flag); break;
      case What::read: answer_.push_back(losses_.at(statement.index).item()); break;
      case What::drop:
        losses_.erase(statement.index);
        kept_.erase(statement.index);
        break;
      case What::step: optimizer_->step(); break;
      case What::clear: optimizer_->clear_grad(); break;
      case What::mode: norm_.train(statement.flag); break;
      case What::freeze: parameter(statement.index).set_requires_grad(statement.flag); break;
      case What::load: load(statement.index, statement.input); break;
      case What::hold: held_ = parameter(statement.index).value(); break;
      case What::read_held: answer_.push_back(weighted_sum_of(held_)); break;
      case What::read_grad: read_gradient(statement.index); break;
      case What::block: call(statement); break;
      case What::thread: break;
    }
  }

  void run_all(std::span<const Statement> statements) {
    for (size_t i = 0; i < statements.size(); ++i) {
      if (statements[i].what != What::thread) {
        execute(statements[i]);
        continue;
      }
      const auto count = static_cast<size_t>(statements[i].index);
      run_in_thread(statements.subspan(i + 1, count));
      i += count;
    }
  }

  // Handles cross threads only when they have been committed.
  void run_in_thread(std::span<const Statement> statements) {
    commit();
    std::exception_ptr error;
    std::thread([&] {
      try {
        run_all(statements);
        commit();
      } catch (...) {
        error = std::current_exception();
        Trace::current().clear();
      }
    }).join();
    if (error) std::rethrow_exception(error);
  }

  const Program& program_;
  How how_;
  Device second_;
  nn::BatchNorm1d norm_{{.channels = kColumns}};
  std::vector<Parameter> parameters_;
  std::vector<Tensor> inputs_;
  std::optional<optim::Momentum> optimizer_;
  std::vector<Compiled<std::vector<Tensor>>> compiled_;
  std::map<int, Tensor> losses_, kept_;
  Tensor held_;
  Answer answer_;
};

}  // namespace

Answer run(const Program& program, How how) {
  CheckNumbers op_by_op(how == How::op_by_op);
  return Runner(program, how).run();
}

}  // namespace bonfire::property
