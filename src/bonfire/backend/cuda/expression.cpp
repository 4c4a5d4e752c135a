#include "bonfire/backend/cuda/expression.h"

#include <algorithm>

#include "bonfire/backend/cuda/nvrtc.h"
#include "bonfire/backend/cuda/runtime.h"
#include "bonfire/base/error.h"

namespace bonfire::cuda {

extern const char* const kElementwiseFunctionsSource;  // the text of ops/elementwise_functions.h

namespace {

constexpr int kThreads = 256;

const char* storage_name(DType dtype) {
  switch (dtype) {
    case DType::f32: return "float";
    case DType::f64: return "double";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::i32: return "int";
    case DType::i64: return "long long";
    case DType::u8: return "unsigned char";
    case DType::boolean: break;
  }
  return "flag";
}

const char* compute_name(DType dtype) {
  if (dtype == DType::f64) return "double";
  return is_floating(dtype) ? "float" : "long long";
}

// Of whole numbers the compiler would not know which of its functions to take.
constexpr const char* kWholePowers =
    "__device__ inline double pow(long long x, long long y) { return pow((double)x, (double)y); }\n";

// Storage types, and how a number gets in and out of them.
constexpr const char* kPrelude = R"(
struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };
struct flag { unsigned char bits; };
template <class T, int n> struct alignas(sizeof(T) * n < 16 ? sizeof(T) * n : 16) Pack { T item[n]; };
__device__ inline float number(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
__device__ inline float number(f16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
__device__ inline long long number(flag x) { return x.bits; }
template <class T> __device__ T number(T x) { return x; }
template <class T, class N> __device__ void put(T& to, N x) { to = (T)x; }
template <class N> __device__ void put(bf16& to, N x) {
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"((float)x));
}
template <class N> __device__ void put(f16& to, N x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"((float)x)); }
template <class N> __device__ void put(flag& to, N x) { to.bits = x != N(0); }
namespace fn = bonfire::elementwise;
)";

bool is_scalar(const Walk& walk, size_t input) {
  return std::all_of(walk.strides[input].begin(), walk.strides[input].end(), [](int64_t s) { return s == 0; });
}

bool is_whole(const Walk& walk, size_t input) {  // as the result, element by element
  return walk.extents.size() == 1 && walk.strides[input][0] == 1;
}

// Code that loads input i for all `width` elements into the array x<i>.
std::string load_code(const Expression& expression, const Walk& walk, size_t i) {
  std::string storage = storage_name(expression.inputs[i]), number = compute_name(expression.compute);
  std::string code =
      fmt::format("  const {0}* p{1} = (const {0}*)p.in[{1}];\n  {2} x{1}[{3}];\n", storage, i, number, walk.width);
  if (is_scalar(walk, i))
    return code + fmt::format("  for (int k = 0; k < {1}; ++k) x{0}[k] = number(p{0}[0]);\n", i, walk.width);
  if (is_whole(walk, i)) {
    code += fmt::format("  p{} += (Index)i * {};\n", i, walk.width);
  } else {
    for (size_t axis = 0; axis < walk.extents.size(); ++axis)
      if (walk.strides[i][axis] != 0) code += fmt::format("  p{0} += (Index)c{1} * p.stride[{0}][{1}];\n", i, axis);
  }
  if (walk.strides[i].back() == 0)
    return code + fmt::format("  for (int k = 0; k < {1}; ++k) x{0}[k] = number(p{0}[0]);\n", i, walk.width);
  if (walk.strides[i].back() != 1)
    return code +
           fmt::format("  for (int k = 0; k < {1}; ++k) x{0}[k] = number(p{0}[(Index)k * p.stride[{0}][{2}]]);\n", i,
                       walk.width, walk.extents.size() - 1);
  return code + fmt::format(
                    "  Pack<{0}, {2}> q{1} = *(const Pack<{0}, {2}>*)p{1};\n"
                    "  for (int k = 0; k < {2}; ++k) x{1}[k] = number(q{1}.item[k]);\n",
                    storage, i, walk.width);
}

}  // namespace

Expression Expression::of(const GraphNode& node) {
  Expression expression{program_of(node), {}, compute_type(node)};
  for (const GraphValue& input : node.inputs) expression.inputs.push_back(input.spec().dtype);
  return expression;
}

Walk plan_walk(const Expression& expression, const Layout& layout, const std::vector<Shape>& input_shapes,
               const std::vector<Layout>& input_layouts) {
  const Shape& shape = expression.program.shape;
  Walk walk;
  size_t inputs = input_shapes.size();
  walk.strides.resize(inputs);
  std::vector<Shape> strides;  // by axis of the result
  for (size_t i = 0; i < inputs; ++i) {
    Shape own = strides_of(input_shapes[i], input_layouts[i]), wide = shape;
    int missing = shape.rank() - own.rank();
    for (int axis = 0; axis < shape.rank(); ++axis)
      wide[axis] = axis < missing || input_shapes[i][axis - missing] == 1 ? 0 : own[axis - missing];
    strides.push_back(wide);
  }
  for (int step = 0; step < shape.rank(); ++step) {
    int axis = layout.order.rank() == 0 ? step : static_cast<int>(layout.order[step]);
    if (shape[axis] == 1) continue;
    bool merges = !walk.extents.empty();
    for (size_t i = 0; i < inputs && merges; ++i) merges = walk.strides[i].back() == strides[i][axis] * shape[axis];
    if (merges) {
      walk.extents.back() *= shape[axis];
      for (size_t i = 0; i < inputs; ++i) walk.strides[i].back() = strides[i][axis];
    } else {
      walk.extents.push_back(shape[axis]);
      for (size_t i = 0; i < inputs; ++i) walk.strides[i].push_back(strides[i][axis]);
    }
  }
  if (walk.extents.empty()) {
    walk.extents.push_back(1);
    for (auto& list : walk.strides) list.push_back(0);
  }
  bool narrow = false;
  for (DType type : expression.inputs) narrow = narrow || size_of(type) <= 2;
  for (DType type : expression.program.types) narrow = narrow || size_of(type) <= 2;
  walk.width = narrow ? 8 : 4;
  auto aligned = [&](int width) {  // every pack begins at a multiple of its size
    if (walk.extents.back() % width != 0) return false;
    for (size_t i = 0; i < inputs; ++i)
      for (size_t axis = 0; axis + 1 < walk.extents.size(); ++axis)
        if (walk.strides[i].back() == 1 && walk.strides[i][axis] % width != 0) return false;
    return true;
  };
  while (walk.width > 1 && !aligned(walk.width)) walk.width /= 2;
  return walk;
}

std::string generate_source(const Expression& expression, const Walk& walk) {
  size_t rank = walk.extents.size();
  int64_t count = 1;
  for (int64_t extent : walk.extents) count *= extent;
  size_t inputs = expression.inputs.size();
  std::string code = kWholePowers;
  code += kElementwiseFunctionsSource;
  code += kPrelude;
  code += fmt::format("typedef {} Index;\n", count < (int64_t{1} << 31) ? "unsigned" : "unsigned long long");
  code += fmt::format(
      "struct Arguments {{ const void* in[{0}]; void* out[{1}]; unsigned long long count; unsigned long long "
      "extent[{2}]; "
      "unsigned long long stride[{0}][{2}]; }};\n",
      std::max<size_t>(inputs, 1), expression.program.results.size(), rank);
  code += fmt::format(
      "extern \"C\" __global__ void __launch_bounds__({0}) elementwise(const __grid_constant__ Arguments p) {{\n"
      "  Index i = (Index)blockIdx.x * {0} + threadIdx.x;\n  if (i >= p.count) return;\n",
      kThreads);
  if (rank > 1) {
    code += fmt::format("  Index rest = i * {};\n", walk.width);
    for (size_t axis = rank; axis-- > 1;)
      code += fmt::format("  Index c{0} = rest % (Index)p.extent[{0}]; rest /= (Index)p.extent[{0}];\n", axis);
    code += "  Index c0 = rest;\n";
  } else {
    code += fmt::format("  Index c0 = i * {};\n", walk.width);
  }
  for (size_t i = 0; i < inputs; ++i) code += load_code(expression, walk, i);
  for (size_t o = 0; o < expression.program.results.size(); ++o)
    code += fmt::format("  Pack<{}, {}> y{};\n", storage_name(expression.program.types[o]), walk.width, o);
  code += fmt::format("#pragma unroll\n  for (int k = 0; k < {}; ++k) {{\n", walk.width);
  std::string type = compute_name(expression.compute);
  size_t value = inputs;
  for (size_t i = 0; i < inputs; ++i) code += fmt::format("    {1} v{0} = x{0}[k];\n", i, type);
  for (const ElementwiseInstruction& instruction : expression.program.instructions) {
    std::string operands;
    for (int i = 0; i < arity(instruction.function); ++i)
      operands += fmt::format("{}v{}", operands.empty() ? "" : ", ", instruction.operand[i]);
    code += fmt::format("    {0} v{1} = fn::{2}<{0}>::call({3});\n", type, value++, name_of(instruction.function),
                        operands);
  }
  for (size_t o = 0; o < expression.program.results.size(); ++o)
    code += fmt::format("    put(y{}.item[k], v{});\n", o, inputs + static_cast<size_t>(expression.program.results[o]));
  code += "  }\n";
  for (size_t o = 0; o < expression.program.results.size(); ++o)
    code += fmt::format("  ((Pack<{0}, {1}>*)p.out[{2}])[i] = y{2};\n", storage_name(expression.program.types[o]),
                        walk.width, o);
  return code + "}\n";
}

namespace {

// The generated struct Arguments, whose arrays are as long as each kernel needs: the same words, filled in order.
class ExpressionKernel final : public Kernel {
 public:
  ExpressionKernel(const Expression& expression, const Walk& walk)
      : kernel_(compile_kernel(generate_source(expression, walk), "elementwise")),
        inputs_(expression.inputs.size()),
        outputs_(expression.program.results.size()) {
    int64_t count = 1;
    for (int64_t extent : walk.extents) count *= extent;
    packs_ = static_cast<uint64_t>(count / walk.width);
    words_.resize(std::max<size_t>(inputs_, 1) + outputs_);
    words_.push_back(packs_);
    for (int64_t extent : walk.extents) words_.push_back(static_cast<uint64_t>(extent));
    for (const auto& strides : walk.strides)
      for (int64_t stride : strides) words_.push_back(static_cast<uint64_t>(stride));
    if (inputs_ == 0) words_.resize(words_.size() + walk.extents.size());
  }

  void run(const Run& run) override {
    if (packs_ == 0) return;
    for (size_t i = 0; i < inputs_; ++i) words_[i] = reinterpret_cast<uint64_t>(run.inputs[i]);
    for (size_t i = 0; i < outputs_; ++i)
      words_[std::max<size_t>(inputs_, 1) + i] = reinterpret_cast<uint64_t>(run.outputs[i]);
    void* arguments[] = {words_.data()};
    dim3 blocks(static_cast<unsigned>((packs_ + kThreads - 1) / kThreads));
    check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel_), blocks, dim3(kThreads), arguments, 0,
                           static_cast<cudaStream_t>(run.stream)),
          "cudaLaunchKernel");
  }

 private:
  cudaKernel_t kernel_;
  size_t inputs_, outputs_;
  uint64_t packs_ = 0;
  std::vector<uint64_t> words_;
};

}  // namespace

std::unique_ptr<Kernel> make_expression_kernel(const Expression& expression, const Walk& walk) {
  return std::make_unique<ExpressionKernel>(expression, walk);
}

std::unique_ptr<Kernel> make_bias_act_kernel(const BiasAct& what) {
  Expression expression;
  expression.inputs = {what.dtype};
  std::vector<Shape> shapes{what.shape};
  std::vector<Layout> layouts{what.layout};
  if (what.bias_type != nullptr) {
    expression.inputs.push_back(*what.bias_type);
    shapes.push_back(what.bias_shape);
    layouts.emplace_back();
  }
  if (what.residual) {
    expression.inputs.push_back(what.dtype);
    shapes.push_back(what.shape);
    layouts.push_back(what.layout);
  }
  ElementwiseProgram& program = expression.program;
  program.inputs = static_cast<int>(expression.inputs.size());
  auto newest = [&] {
    return program.instructions.empty() ? 0 : program.inputs + static_cast<int>(program.instructions.size()) - 1;
  };
  for (int input = 1; input < program.inputs; ++input)
    program.instructions.push_back({ElementwiseFunction::add, {newest(), input, -1}});
  if (what.activation >= 0)
    program.instructions.push_back({static_cast<ElementwiseFunction>(what.activation), {newest(), -1, -1}});
  program.results = {static_cast<int>(program.instructions.size()) - 1};
  program.shape = what.shape;
  program.types = {what.dtype};
  expression.compute = what.dtype == DType::f64 ? DType::f64 : DType::f32;
  return make_expression_kernel(expression, plan_walk(expression, what.layout, shapes, layouts));
}

}  // namespace bonfire::cuda
