// All elementwise ops and their fused chains on the CPU: an interpreter over blocks that stay in the L1 cache. For each
// block, inputs are converted to the compute type (or used where they lie), every instruction is one vectorised loop
// over the block, and results are converted on the way out.

#include <algorithm>
#include <cstring>
#include <numeric>

#include "bonfire/backend/cpu/simd/every_instruction_set.h"
#include "bonfire/base/error.h"
#include "bonfire/kernel/kernel.h"
#include "bonfire/ops/elementwise_program.h"

namespace bonfire::cpu {

namespace {

constexpr int64_t kBlock = 512;    // elements
constexpr int64_t kGrain = 16384;  // elements a thread must have to be worth waking

template <class T>
using BlockFunction = void (*)(const T*, const T*, const T*, T*, int64_t);

template <class T, template <class> class F, int Arity>
void block_loop(const T* a, const T* b, const T* c, T* out, int64_t n) {
#pragma GCC ivdep  // `out` may be one of the operands, element for element
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (Arity == 1) out[i] = F<T>::call(a[i]);
    if constexpr (Arity == 2) out[i] = F<T>::call(a[i], b[i]);
    if constexpr (Arity == 3) out[i] = F<T>::call(a[i], b[i], c[i]);
  }
}

template <class T>
BlockFunction<T> block_function(ElementwiseFunction function) {
  static constexpr BlockFunction<T> kTable[] = {
#define BONFIRE_LOOP(name, arity) &block_loop<T, elementwise::name, arity>,
      BONFIRE_ELEMENTWISE_FUNCTIONS(BONFIRE_LOOP)
#undef BONFIRE_LOOP
  };
  return kTable[static_cast<int>(function)];
}

template <class T>
constexpr bool kHalf = std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>;

template <class From, class To>
To converted(From value) {
  if constexpr (std::is_same_v<To, bool>) {
    return value != From(0);
  } else if constexpr (kHalf<From> || kHalf<To>) {
    return static_cast<To>(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

template <class T>
using LoadFunction = void (*)(const void*, int64_t stride, T*, int64_t);
template <class T>
using StoreFunction = void (*)(const T*, void*, int64_t);

template <class T>
LoadFunction<T> load_function(DType dtype) {
  return dispatch(dtype, [](auto tag) -> LoadFunction<T> {
    using From = typename decltype(tag)::type;
    return [](const void* source, int64_t stride, T* target, int64_t n) {
      const From* from = static_cast<const From*>(source);
      if (stride == 1) {
        for (int64_t i = 0; i < n; ++i) target[i] = converted<From, T>(from[i]);
      } else if (stride == 0) {
        std::fill_n(target, n, converted<From, T>(from[0]));
      } else {
        for (int64_t i = 0; i < n; ++i) target[i] = converted<From, T>(from[i * stride]);
      }
    };
  });
}

template <class T>
StoreFunction<T> store_function(DType dtype) {
  return dispatch(dtype, [](auto tag) -> StoreFunction<T> {
    using To = typename decltype(tag)::type;
    return [](const T* source, void* target, int64_t n) {
      To* to = static_cast<To*>(target);
      for (int64_t i = 0; i < n; ++i) to[i] = converted<T, To>(source[i]);
    };
  });
}

// The iteration space with neighbouring axes merged where every operand allows it; the last axis is the inner row.
struct Space {
  std::vector<int64_t> extents;
  std::vector<std::vector<int64_t>> strides;  // [input][axis], elements; outputs are dense in this order
  int64_t rows = 1, row = 1;
};

Shape broadcast_strides(const Shape& own, const Layout& layout, const Shape& full) {
  Shape dense = strides_of(own, layout), strides = full;
  int offset = full.rank() - own.rank();
  for (int i = 0; i < full.rank(); ++i) strides[i] = i < offset || own[i - offset] == 1 ? 0 : dense[i - offset];
  return strides;
}

Space make_space(const Shape& shape, const Layout& layout, const std::vector<Shape>& input_strides) {
  std::vector<int> order(shape.rank());
  std::iota(order.begin(), order.end(), 0);
  for (int i = 0; i < layout.order.rank(); ++i) order[i] = static_cast<int>(layout.order[i]);
  Space space;
  space.strides.resize(input_strides.size());
  for (int axis : order) {
    if (shape[axis] == 1) continue;
    bool merges = !space.extents.empty();
    for (size_t k = 0; k < input_strides.size() && merges; ++k)
      merges = space.strides[k].back() == input_strides[k][axis] * shape[axis];
    if (merges) {
      space.extents.back() *= shape[axis];
      for (size_t k = 0; k < input_strides.size(); ++k) space.strides[k].back() = input_strides[k][axis];
    } else {
      space.extents.push_back(shape[axis]);
      for (size_t k = 0; k < input_strides.size(); ++k) space.strides[k].push_back(input_strides[k][axis]);
    }
  }
  if (space.extents.empty()) {
    space.extents.push_back(1);
    for (auto& strides : space.strides) strides.push_back(0);
  }
  space.row = space.extents.back();
  for (size_t i = 0; i + 1 < space.extents.size(); ++i) space.rows *= space.extents[i];
  return space;
}

template <class T>
class ElementwiseKernel final : public Kernel {
 public:
  ElementwiseKernel(const GraphNode& node, const Layout& layout, const std::vector<Layout>& input_layouts)
      : program_(program_of(node)) {
    std::vector<Shape> strides;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const TensorSpec& spec = node.inputs[i].spec();
      strides.push_back(broadcast_strides(spec.shape, input_layouts[i], program_.shape));
      input_types_.push_back(spec.dtype);
      loads_.push_back(load_function<T>(spec.dtype));
    }
    space_ = make_space(program_.shape, layout, strides);
    for (const ElementwiseInstruction& instruction : program_.instructions)
      functions_.push_back(block_function<T>(instruction.function));
    for (DType type : program_.types) stores_.push_back(store_function<T>(type));
  }

  void run(const Run& run) override {
    int64_t total = space_.rows * space_.row;
    if (total == 0) return;
    if (is_plain_cast()) {
      run.threads->parallel_for(total, kGrain, [&](int64_t begin, int64_t end) { cast_range(run, begin, end); });
      return;
    }
    run.threads->parallel_for(total, kGrain, [&](int64_t begin, int64_t end) { run_range(run, begin, end); });
  }

 private:
  // A cast to or from the compute type, element by element in memory order: one conversion, nothing in between.
  bool is_plain_cast() const {
    return program_.inputs == 1 && program_.instructions.size() == 1 && program_.results.size() == 1 &&
           program_.instructions[0].function == ElementwiseFunction::identity && space_.rows == 1 &&
           space_.strides[0].back() == 1 && (input_types_[0] == dtype_of<T>() || program_.types[0] == dtype_of<T>());
  }

  void cast_range(const Run& run, int64_t begin, int64_t end) {
    const char* source =
        static_cast<const char*>(run.inputs[0]) + begin * static_cast<int64_t>(size_of(input_types_[0]));
    char* target = static_cast<char*>(run.outputs[0]) + begin * static_cast<int64_t>(size_of(program_.types[0]));
    if (program_.types[0] == dtype_of<T>()) {
      loads_[0](source, 1, reinterpret_cast<T*>(target), end - begin);
    } else {
      stores_[0](reinterpret_cast<const T*>(source), target, end - begin);
    }
  }

  // Elements [begin, end) of the outputs, in memory order.
  void run_range(const Run& run, int64_t begin, int64_t end) {
    size_t registers = program_.inputs + program_.instructions.size();
    thread_local std::vector<T> scratch;
    scratch.resize(std::max(scratch.size(), registers * kBlock));
    std::vector<const T*> values(registers);
    std::vector<int64_t> offsets(static_cast<size_t>(program_.inputs));
    fill_uniform(run, scratch, values);
    for (int64_t at = begin; at < end;) {
      int64_t column = at % space_.row;
      find_row(at / space_.row, offsets);
      int64_t row_end = std::min(end, at + space_.row - column);
      for (; at < row_end; at += kBlock, column += kBlock) {
        int64_t n = std::min(kBlock, row_end - at);
        load_block(run, offsets, column, n, scratch, values);
        compute_block(run, at, n, scratch, values);
      }
      at = row_end;
    }
  }

  bool is_uniform(int input) const {
    const auto& strides = space_.strides[static_cast<size_t>(input)];
    return std::all_of(strides.begin(), strides.end(), [](int64_t stride) { return stride == 0; });
  }

  // Inputs that are one number fill their block once.
  void fill_uniform(const Run& run, std::vector<T>& scratch, std::vector<const T*>& values) {
    for (int i = 0; i < program_.inputs; ++i) {
      if (!is_uniform(i)) continue;
      T* block = scratch.data() + i * kBlock;
      loads_[i](run.inputs[i], 0, block, kBlock);
      values[i] = block;
    }
  }

  void find_row(int64_t row, std::vector<int64_t>& offsets) {
    std::fill(offsets.begin(), offsets.end(), 0);
    for (int axis = static_cast<int>(space_.extents.size()) - 2; axis >= 0; --axis) {
      int64_t index = row % space_.extents[axis];
      row /= space_.extents[axis];
      for (size_t k = 0; k < offsets.size(); ++k) offsets[k] += index * space_.strides[k][axis];
    }
  }

  // What the next block reads comes while this one is computed.
  static void ask_for(const char* bytes, int64_t count) {
    constexpr int64_t kLine = 64;
    for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(bytes + i);
  }

  void load_block(const Run& run, const std::vector<int64_t>& offsets, int64_t column, int64_t n,
                  std::vector<T>& scratch, std::vector<const T*>& values) {
    for (int i = 0; i < program_.inputs; ++i) {
      if (is_uniform(i)) continue;
      int64_t stride = space_.strides[i].back();
      int64_t element = offsets[i] + column * stride;
      const auto size = static_cast<int64_t>(size_of(input_types_[i]));
      const char* source = static_cast<const char*>(run.inputs[i]) + element * size;
      if (stride == 1) ask_for(source + kBlock * size, kBlock * size);
      if (stride == 1 && input_types_[i] == dtype_of<T>()) {
        values[i] = reinterpret_cast<const T*>(source);
      } else {
        T* block = scratch.data() + i * kBlock;
        loads_[i](source, stride, block, n);
        values[i] = block;
      }
    }
  }

  void compute_block(const Run& run, int64_t at, int64_t n, std::vector<T>& scratch, std::vector<const T*>& values) {
    for (size_t k = 0; k < program_.instructions.size(); ++k) {
      const ElementwiseInstruction& instruction = program_.instructions[k];
      size_t result = program_.inputs + k;
      T* target = scratch.data() + result * kBlock;
      bool last = program_.results.size() == 1 && program_.results[0] == static_cast<int>(k) &&
                  k + 1 == program_.instructions.size() && program_.types[0] == dtype_of<T>();
      if (last) target = static_cast<T*>(run.outputs[0]) + at;
      auto operand = [&](int i) { return instruction.operand[i] < 0 ? nullptr : values[instruction.operand[i]]; };
      functions_[k](operand(0), operand(1), operand(2), target, n);
      values[result] = target;
      if (last) return;
    }
    for (size_t o = 0; o < program_.results.size(); ++o) {
      char* target = static_cast<char*>(run.outputs[o]) + at * static_cast<int64_t>(size_of(program_.types[o]));
      stores_[o](values[program_.inputs + program_.results[o]], target, n);
    }
  }

  ElementwiseProgram program_;
  Space space_;
  std::vector<DType> input_types_;
  std::vector<LoadFunction<T>> loads_;
  std::vector<StoreFunction<T>> stores_;
  std::vector<BlockFunction<T>> functions_;
};

// Inputs of the full shape are taken in the layout in which the first of them arrives; broadcast ones are row-major.
std::vector<Candidate> elementwise_candidates(const KernelRequest& request) {
  const GraphNode& node = request.node;
  const Shape& shape = node.outputs[0].shape;
  Candidate candidate = row_major_candidate(request, "blocks");
  Layout layout;
  for (size_t i = 0; i < node.inputs.size() && layout.row_major(); ++i)
    if (node.inputs[i].spec().shape == shape && request.arriving[i].block == 0) layout = request.arriving[i];
  for (size_t i = 0; i < node.inputs.size(); ++i)
    if (node.inputs[i].spec().shape == shape) candidate.input_layouts[i] = layout;
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    candidate.output_layouts[o] = layout;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (node.inputs[i].spec().shape == shape &&
          size_of(node.inputs[i].spec().dtype) == size_of(node.outputs[o].dtype))
        candidate.in_place.emplace_back(static_cast<int>(o), static_cast<int>(i));
  }
  candidate.build = [&node, layout, inputs = candidate.input_layouts]() -> std::unique_ptr<Kernel> {
    switch (compute_type(node)) {
      case DType::f64: return std::make_unique<ElementwiseKernel<double>>(node, layout, inputs);
      case DType::i64: return std::make_unique<ElementwiseKernel<int64_t>>(node, layout, inputs);
      default: return std::make_unique<ElementwiseKernel<float>>(node, layout, inputs);
    }
  };
  return {std::move(candidate)};
}

}  // namespace

BONFIRE_CPU_KERNELS(elementwise, {kAnyElementwise.data(), elementwise_candidates})

}  // namespace bonfire::cpu
