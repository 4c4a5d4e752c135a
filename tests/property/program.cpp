#include "tests/property/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace bonfire::property {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ULL + 0x1234567) {}
  uint64_t next() {  // splitmix64
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  int below(int count) { return static_cast<int>(next() % static_cast<uint64_t>(count)); }
  bool chance(int percent) { return below(100) < percent; }

 private:
  uint64_t state_;
};

// Draws statements that are right wherever they stand, and knows which losses there are.
class Writer {
 public:
  explicit Writer(uint64_t seed) : dice_(seed) {
    program_.seed = seed;
    program_.two_devices = dice_.chance(30);
    program_.lr = 0.05 * (1 + dice_.below(4));
    program_.momentum = dice_.chance(50) ? 0.9 : 0;
    program_.weight_decay = dice_.chance(30) ? 0.01 : 0;
    const int blocks = dice_.below(3);
    for (int i = 0; i < blocks; ++i) program_.blocks.push_back(draw_block());
    const int statements = 8 + dice_.below(25);
    while (static_cast<int>(program_.statements.size()) < statements) add_statement();
    insert_threads();
  }

  Program take() { return std::move(program_); }

 private:
  struct Loss {
    int index;
    bool shared;  // with another one's history
    bool consumed = false;
    bool no_grad = false;
  };

  ForwardOp draw_op(int operands, const std::vector<int>& kept) {
    auto operand = [&] {
      if (!kept.empty() && dice_.chance(10))
        return kKept + kept[static_cast<size_t>(dice_.below(static_cast<int>(kept.size())))];
      return dice_.chance(60) ? operands - 1 : dice_.below(operands);
    };
    return {static_cast<OpKind>(dice_.below(kOpKinds)), operand(), operand()};
  }

  Statement draw_forward(int index, const std::vector<int>& kept) {
    Statement forward{.what = What::forward, .index = index, .input = dice_.below(kInputs), .flag = dice_.chance(10)};
    forward.ops.push_back({OpKind::matmul_weight, 0, 0});
    const int more = 1 + dice_.below(6);
    for (int i = 0; i < more; ++i) forward.ops.push_back(draw_op(static_cast<int>(forward.ops.size()) + 1, kept));
    return forward;
  }

  // A function that compile() could trace: its losses are its own, and it reads nothing.
  std::vector<Statement> draw_block() {
    std::vector<Statement> block;
    const int losses = 1 + dice_.below(2);
    for (int i = 0; i < losses; ++i) {
      if (dice_.chance(15)) block.push_back({.what = What::mode, .flag = dice_.chance(50)});
      if (dice_.chance(15)) block.push_back({.what = What::clear});
      block.push_back(draw_forward(i, {}));
      block.back().input = -1;  // the block's argument
      if (dice_.chance(85)) block.push_back({.what = What::backward, .index = i, .flag = dice_.chance(10)});
    }
    if (dice_.chance(50)) block.push_back({.what = What::step});
    if (dice_.chance(50)) block.push_back({.what = What::clear});
    return block;
  }

  Loss* pick_loss() {
    return losses_.empty() ? nullptr : &losses_[static_cast<size_t>(dice_.below(static_cast<int>(losses_.size())))];
  }

  bool any_history() const {
    return std::any_of(losses_.begin(), losses_.end(), [](const Loss& loss) { return !loss.consumed; });
  }

  void add(Statement statement) { program_.statements.push_back(std::move(statement)); }

  void add_forward() {
    std::vector<int> kept;
    for (const Loss& loss : losses_)
      if (kept_.contains(loss.index) && !loss.consumed) kept.push_back(loss.index);
    Statement forward = draw_forward(next_loss_++, kept);
    bool shared = false;
    for (const ForwardOp& op : forward.ops)
      for (int operand : {op.a, op.b})
        if (operand >= kKept) {
          shared = true;
          for (Loss& loss : losses_) loss.shared |= loss.index == operand - kKept;
        }
    if (dice_.chance(25)) {
      forward.keep = dice_.below(static_cast<int>(forward.ops.size()));
      kept_.insert(forward.index);
    }
    losses_.push_back({forward.index, shared, false, forward.flag});
    add(std::move(forward));
  }

  void add_backward() {
    Loss* loss = pick_loss();
    if (loss == nullptr || loss->consumed || loss->no_grad) return;
    const bool retain = loss->shared || kept_.contains(loss->index) || dice_.chance(15);
    loss->consumed = !retain;
    add({.what = What::backward, .index = loss->index, .flag = retain});
  }

  void add_statement() {
    const int kind = dice_.below(100);
    const int parameter = dice_.below(kParameters);
    if (kind < 24) {
      add_forward();
    } else if (kind < 44) {
      add_backward();
    } else if (kind < 54) {
      if (Loss* loss = pick_loss()) add({.what = What::read, .index = loss->index});
    } else if (kind < 58) {
      if (Loss* loss = pick_loss()) {
        add({.what = What::drop, .index = loss->index});
        std::erase_if(losses_, [index = loss->index](const Loss& one) { return one.index == index; });
      }
    } else if (kind < 68) {
      add({.what = What::step});
    } else if (kind < 74) {
      add({.what = What::clear});
    } else if (kind < 78) {
      add({.what = What::mode, .flag = dice_.chance(50)});
    } else if (kind < 80) {
      if (!any_history()) add({.what = What::freeze, .index = parameter, .flag = dice_.chance(50)});
    } else if (kind < 83) {
      add({.what = What::load, .index = parameter, .input = 100 + dice_.below(100)});
    } else if (kind < 86) {
      add({.what = What::hold, .index = parameter});
      holds_ = true;
    } else if (kind < 88) {
      if (holds_) add({.what = What::read_held});
    } else if (kind < 91) {
      add({.what = What::read_grad, .index = parameter});
    } else if (!program_.blocks.empty()) {
      add({.what = What::block,
           .index = dice_.below(static_cast<int>(program_.blocks.size())),
           .input = dice_.below(kInputs)});
    }
  }

  void insert_threads() {
    if (!dice_.chance(30)) return;
    const int begin = dice_.below(static_cast<int>(program_.statements.size()));
    const int count = 1 + dice_.below(static_cast<int>(program_.statements.size()) - begin);
    program_.statements.insert(program_.statements.begin() + begin, {.what = What::thread, .index = count});
  }

  Dice dice_;
  Program program_;
  std::vector<Loss> losses_;
  std::set<int> kept_;  // losses whose forward pass has left a tensor
  int next_loss_ = 0;
  bool holds_ = false;
};

std::string line_of(const Statement& statement) {
  std::string text = fmt::format("{} {} {} {} {}", static_cast<int>(statement.what), statement.index, statement.input,
                                 statement.flag ? 1 : 0, statement.keep);
  for (const ForwardOp& op : statement.ops) text += fmt::format(" {}:{}:{}", static_cast<int>(op.kind), op.a, op.b);
  return text + "\n";
}

}  // namespace

Program draw(uint64_t seed) { return Writer(seed).take(); }

std::string to_text(const Program& program) {
  std::string text =
      fmt::format("program {} {} {} {}\n", program.seed, program.lr, program.momentum, program.weight_decay);
  for (const std::vector<Statement>& block : program.blocks) {
    text += "define\n";
    for (const Statement& statement : block) text += line_of(statement);
  }
  text += "begin\n";
  for (const Statement& statement : program.statements) text += line_of(statement);
  return text + "end\n";
}

std::vector<double> values(uint64_t seed, int stream, int64_t count) {
  Dice dice(seed * 1000003 + static_cast<uint64_t>(stream));
  std::vector<double> list;
  // Multiples of 2^-12 in [-1, 1): exact in every type.
  for (int64_t i = 0; i < count; ++i) list.push_back(static_cast<double>(dice.below(8192) - 4096) / 4096);
  return list;
}

double weighted_sum(const std::vector<double>& numbers) {
  double sum = 0;
  for (size_t i = 0; i < numbers.size(); ++i) sum += numbers[i] * (1 + 0.125 * static_cast<double>(i % 16));
  return sum;
}

}  // namespace bonfire::property
