// Matrix products of oneDNN. A batch of products is cut into one part per thread; a single product along the larger of
// its rows and columns.

#include <optional>

#include "bonfire/backend/cpu/device/threads.h"
#include "bonfire/backend/onednn/onednn.h"

namespace bonfire::onednn {

namespace {

using Desc = dnnl::memory::desc;
using Dims = dnnl::memory::dims;

// c [batch, m, n] = a [batch, m, k] · b [batch, k, n]; strides are in elements, 0 where an operand serves every batch.
struct Product {
  int64_t batch = 1, m = 1, n = 1, k = 1;
  Dims a_strides = {}, b_strides = {}, c_strides = {};  // of [batch, row, column]
  DType dtype = DType::f32;
  bool has_bias = false;
  DType bias_dtype = DType::f32;
  int64_t activation = -1;
};

int64_t batch_of(const Shape& shape) { return shape.count() / (shape[-2] * shape[-1]); }

// Nothing when the batch axes of one operand repeat within those of another.
std::optional<Product> describe(const GraphNode& node) {
  const Shape &a = node.inputs[0].spec().shape, &b = node.inputs[1].spec().shape, &c = node.outputs[0].shape;
  if (a.count() == 0 || b.count() == 0 || !has_type(node.outputs[0].dtype)) return {};
  Product p{.batch = batch_of(c), .m = c[-2], .n = c[-1], .dtype = node.outputs[0].dtype};
  auto even = [&](const Shape& shape) { return batch_of(shape) == 1 || batch_of(shape) == p.batch; };
  if (!even(a) || !even(b)) return {};
  bool transpose_a = node.attributes.flag("transpose_a"), transpose_b = node.attributes.flag("transpose_b");
  p.k = a[transpose_a ? -2 : -1];
  auto strides = [&](const Shape& shape, bool transposed) {
    int64_t step = batch_of(shape) == 1 ? 0 : shape[-2] * shape[-1];
    return transposed ? Dims{step, 1, shape[-1]} : Dims{step, shape[-1], 1};
  };
  p.a_strides = strides(a, transpose_a);
  p.b_strides = strides(b, transpose_b);
  p.c_strides = strides(c, false);
  if (node.attributes.has("activation")) p.activation = node.attributes.integer("activation");
  if (node.attributes.has("has_bias") && node.attributes.flag("has_bias")) {
    p.has_bias = true;
    p.bias_dtype = node.inputs[2].spec().dtype;
  }
  return p;
}

enum class Axis : uint8_t { batch, rows, columns };

Axis axis_to_cut(const Product& p, int64_t parts) {
  if (p.batch >= parts) return Axis::batch;
  return p.m >= p.n ? Axis::rows : Axis::columns;
}

int64_t extent(const Product& p, Axis axis) { return axis == Axis::batch ? p.batch : axis == Axis::rows ? p.m : p.n; }

// The product of one part.
Product part_of(Product p, Axis axis, int64_t count) {
  (axis == Axis::batch ? p.batch : axis == Axis::rows ? p.m : p.n) = count;
  return p;
}

Desc matrix(const Product& p, int64_t rows, int64_t columns, const Dims& strides, DType dtype) {
  if (p.batch == 1) return Desc({rows, columns}, type_of(dtype), Dims{strides[1], strides[2]});
  if (strides[0] == 0) return Desc({1, rows, columns}, type_of(dtype), Dims{rows * columns, strides[1], strides[2]});
  return Desc({p.batch, rows, columns}, type_of(dtype), strides);
}

Desc bias_desc(const Product& p) {
  Dims dims = p.batch == 1 ? Dims{1, p.n} : Dims{1, 1, p.n};
  return Desc(dims, type_of(p.bias_dtype), p.batch == 1 ? Dims{p.n, 1} : Dims{p.n, p.n, 1});
}

dnnl::matmul::primitive_desc primitive_desc_of(const Product& p) {
  Desc a = matrix(p, p.m, p.k, p.a_strides, p.dtype), b = matrix(p, p.k, p.n, p.b_strides, p.dtype);
  Desc c = matrix(p, p.m, p.n, p.c_strides, p.dtype);
  dnnl::matmul::desc desc = p.has_bias ? dnnl::matmul::desc(a, b, bias_desc(p), c) : dnnl::matmul::desc(a, b, c);
  return dnnl::matmul::primitive_desc(desc, attributes(p.activation), engine());
}

class MatmulKernel final : public Kernel {
 public:
  MatmulKernel(const Product& whole, Axis axis, const std::vector<Range>& ranges, size_t scratchpad)
      : scratchpad_(scratchpad) {
    OneThread alone;
    auto size = static_cast<int64_t>(size_of(whole.dtype));
    for (const Range& range : ranges) {
      Product p = part_of(whole, axis, range.count);
      dnnl::matmul::primitive_desc desc = primitive_desc_of(p);
      Part part{dnnl::matmul(desc),
                memory_at(desc.src_desc(), nullptr),
                memory_at(desc.weights_desc(), nullptr),
                memory_at(desc.dst_desc(), nullptr),
                {},
                memory_at(desc.scratchpad_desc(), nullptr)};
      if (p.has_bias) part.bias = memory_at(desc.bias_desc(), nullptr);
      int64_t begin = range.begin * size;
      switch (axis) {
        case Axis::batch:
          part.a_offset = begin * p.a_strides[0];
          part.b_offset = begin * p.b_strides[0];
          part.c_offset = begin * p.c_strides[0];
          break;
        case Axis::rows:
          part.a_offset = begin * p.a_strides[1];
          part.c_offset = begin * p.c_strides[1];
          break;
        case Axis::columns:
          part.b_offset = begin * p.b_strides[2];
          part.c_offset = begin;
          part.bias_offset = range.begin * static_cast<int64_t>(size_of(p.bias_dtype));
      }
      parts_.push_back(std::move(part));
    }
  }

  void run(const Run& run) override {
    run.threads->run(static_cast<int64_t>(parts_.size()), [&](int64_t index) {
      OneThread alone;
      Part& part = parts_[static_cast<size_t>(index)];
      part.a.set_data_handle(static_cast<std::byte*>(run.inputs[0]) + part.a_offset);
      part.b.set_data_handle(static_cast<std::byte*>(run.inputs[1]) + part.b_offset);
      part.c.set_data_handle(static_cast<std::byte*>(run.outputs[0]) + part.c_offset);
      part.scratchpad.set_data_handle(static_cast<std::byte*>(run.workspace) +
                                      index * static_cast<int64_t>(scratchpad_));
      std::unordered_map<int, dnnl::memory> arguments{{DNNL_ARG_SRC, part.a},
                                                      {DNNL_ARG_WEIGHTS, part.b},
                                                      {DNNL_ARG_DST, part.c},
                                                      {DNNL_ARG_SCRATCHPAD, part.scratchpad}};
      if (part.bias) {
        part.bias.set_data_handle(static_cast<std::byte*>(run.inputs[2]) + part.bias_offset);
        arguments.emplace(DNNL_ARG_BIAS, part.bias);
      }
      part.primitive.execute(stream(), arguments);
    });
  }

 private:
  struct Part {
    dnnl::matmul primitive;
    dnnl::memory a, b, c, bias, scratchpad;
    int64_t a_offset = 0, b_offset = 0, c_offset = 0, bias_offset = 0;  // bytes
  };
  std::vector<Part> parts_;
  size_t scratchpad_;  // bytes of one part
};

std::vector<Candidate> matmul_candidates(const KernelRequest& request) {
  std::vector<Candidate> candidates;
  std::optional<Product> product;
  if (usable()) product = describe(request.node);
  if (!product) return candidates;
  OneThread alone;
  Axis axis = axis_to_cut(*product, cpu::cpu_threads());
  std::vector<Range> ranges = cut(extent(*product, axis), cpu::cpu_threads());
  std::string implementation;
  size_t scratchpad = 0;
  try {
    for (int64_t count : {ranges.front().count, ranges.back().count}) {
      dnnl::matmul::primitive_desc desc = primitive_desc_of(part_of(*product, axis, count));
      if (is_reference(desc.impl_info_str())) return candidates;
      if (implementation.empty()) implementation = desc.impl_info_str();
      scratchpad = std::max(scratchpad, aligned(desc.scratchpad_desc().get_size()));
    }
  } catch (const dnnl::error&) {
    return candidates;  // not offered for this shape
  }
  Candidate candidate = row_major_candidate(request, "onednn:" + implementation);
  candidate.workspace_bytes = scratchpad * ranges.size();
  candidate.error = kError;
  candidate.build = [=, product = *product] {
    return std::make_unique<MatmulKernel>(product, axis, ranges, scratchpad);
  };
  candidates.push_back(std::move(candidate));
  return candidates;
}

const bool registered[] = {
    register_kernel("matmul", DeviceType::cpu, matmul_candidates),
    register_kernel("matmul_bias_act", DeviceType::cpu, matmul_candidates),
};

}  // namespace

}  // namespace bonfire::onednn
