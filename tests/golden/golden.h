#pragma once
// Reference values from PyTorch, and the generator that makes the same weights and batches here and there. README.md
// in this folder defines both; generate.py wrote the JSON files.
//
//   golden::Model expected = golden::load_model("mnist_cnn");
//   for (const golden::Parameter& p : expected.parameters)
//     fill(model.parameter(p.name), golden::parameter_values(p.name, p.shape, p.kind));
//   auto image = golden::image_values(/*step=*/0, expected.input_count());

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bonfire::golden {

// ---- The generator. Every value is a pure function of (seed, name of its stream, index): the same bits as Python's.

inline constexpr uint64_t kSeed = 20260649;

// How a parameter is filled: rank >= 2; the weight of a batch or layer norm; every other vector.
enum class Kind { weight, norm_weight, bias };

uint64_t fnv1a64(std::string_view text);

// Elements first .. first + count - 1 of the uniform sequence of the stream named `stream`, in [0, 1).
std::vector<float> uniform_values(std::string_view stream, int64_t count, int64_t first = 0);

std::vector<float> parameter_values(std::string_view name, std::span<const int64_t> shape, Kind kind);
std::vector<float> image_values(int64_t step, int64_t count);                            // in [-1, 1)
std::vector<float> box_values(int64_t step, int64_t count);                              // in [0, 1)
std::vector<int64_t> label_values(int64_t step, int64_t count, int64_t classes);         // in [0, classes)
std::vector<int64_t> token_values(int64_t step, int64_t count, int64_t vocabulary);      // in [1, vocabulary)
std::vector<float> gradient_values(std::string_view name, int64_t step, int64_t count);  // in [-1, 1)

// ---- The files.

// The parsed file NAME.json of this folder; DataError when it is missing or damaged.
nlohmann::json load_json(std::string_view name);

Kind kind_from_text(std::string_view text);  // "weight", "norm_weight" or "bias"

// An L2 norm as PyTorch computed it in f32, and in f64: the one to compare with.
struct Norm {
  double f32 = 0;
  double f64 = 0;
};

struct Parameter {
  std::string name;
  std::vector<int64_t> shape;
  Kind kind = Kind::weight;
  Norm gradient;  // L2, first step
};

struct Output {
  std::string name;         // "logits"; "cls" and "box" for the two-headed net
  Norm norm;                // L2, first step
  std::vector<float> head;  // its first ten values
};

struct Buffer {
  std::string name;  // "bn1.running_mean", ...
  Norm norm;         // L2, after the last step
};

struct Model {
  std::string name;
  std::vector<int64_t> input_shape;  // [N, C, H, W], or [N, T] of tokens
  bool takes_tokens = false;
  int64_t vocabulary = 0;
  std::vector<int64_t> label_shape;  // [N], or [N, T]
  int64_t classes = 0;
  double lr = 0;
  double momentum = 0;
  bool uses_adamw = false;                                // in place of SGD with momentum
  double weight_decay = 0;                                // of matrices
  int64_t layers = 0, heads = 0, width = 0, context = 0;  // of a model that has these by options; else 0
  int64_t parameter_count = 0;
  std::vector<Parameter> parameters;  // in PyTorch's order
  std::vector<Output> outputs;
  std::vector<Buffer> buffers;
  std::vector<double> losses;       // one per step, f32
  std::vector<double> losses_f64;   // the same in f64
  std::vector<double> losses_bf16;  // the same under torch.autocast
  double eval_loss = 0;             // after the last step, in eval mode, on the next batch
  double eval_loss_f64 = 0;

  int64_t input_count() const;  // product of input_shape
  int64_t label_count() const;  // product of label_shape
};

Model load_model(std::string_view name);

}  // namespace bonfire::golden
