#pragma once
// A random training program: what a user could write in an imperative loop, as data. Three interpreters run it: Bonfire
// (traced, compiled, or op by op), a small reference in f64 (reference.h), and PyTorch, whose answers for some hundred
// programs are tests/golden/programs.json.
//
// All programs train one small net. Parameters: weight [4, 4], bias [4], other [4, 4] (on the second device, if the
// program has two), and scale [4] and shift [4] of a batch norm over columns. Tensors are [8, 4]. A forward pass is a
// list of ops; operand n is the input for n = 0, else the result of op n - 1; operands from 1000 on are the tensors
// that earlier forward passes have left (`keep`). The loss is mean(square(tanh(last))).

#include <cstdint>
#include <string>
#include <vector>

namespace bonfire::property {

inline constexpr int64_t kRows = 8, kColumns = 4;
inline constexpr int kParameters = 5;  // weight, bias, other, scale, shift
inline constexpr int kInputs = 3;
inline constexpr int kKept = 1000;  // operands from here on are kept tensors

enum class OpKind {
  tanh,
  sigmoid,
  add,
  subtract,
  multiply,
  matmul_weight,
  matmul_other,
  add_bias,
  multiply_bias,
  norm,
  detach,
  half
};
inline constexpr int kOpKinds = 12;

struct ForwardOp {
  OpKind kind;
  int a = 0, b = 0;  // operands
};

enum class What {
  forward,    // losses[index] = forward pass over input `input`; flag: under no_grad
  backward,   // of losses[index], if it requires a gradient; flag: retain_graph
  read,       // the value of losses[index]
  drop,       // losses[index]
  step,       // of the optimizer
  clear,      // clear_grad
  mode,       // flag: train, else eval
  freeze,     // requires_grad of parameter `index` = flag
  load,       // other values (number `input`) for parameter `index`
  hold,       // a handle to the value that parameter `index` has now
  read_held,  // its value
  read_grad,  // the gradient of parameter `index`, if there is one
  block,      // call block `index` with input `input`, and read the losses that it returns
  thread      // the next `index` statements run in another thread
};

struct Statement {
  What what;
  int index = 0, input = 0;
  bool flag = false;
  std::vector<ForwardOp> ops = {};  // of a forward pass
  int keep = -1;                    // of a forward pass: the op whose result is kept, or -1
};

struct Program {
  uint64_t seed = 0;
  bool two_devices = false;
  double lr = 0, momentum = 0, weight_decay = 0;
  std::vector<std::vector<Statement>> blocks;
  std::vector<Statement> statements;
};

Program draw(uint64_t seed);
std::string to_text(const Program& program);  // a statement a line; what generate_programs.py reads

// The values that parameters and inputs begin with, or are loaded with: `stream` tells them apart.
std::vector<double> values(uint64_t seed, int stream, int64_t count);

// What a program computes: everything it reads, in order, and at the end of all parameters, running statistics and
// gradients one weighted sum each (a gradient that there is not: -1000).
using Answer = std::vector<double>;
inline constexpr double kNoGradient = -1000;
double weighted_sum(const std::vector<double>& numbers);

}  // namespace bonfire::property
