#include <omp.h>

#include "bonfire/backend/onednn/onednn.h"
#include "bonfire/base/error.h"
#include "bonfire/ops/elementwise_functions.h"

namespace bonfire::onednn {

OneThread::OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
OneThread::~OneThread() { omp_set_num_threads(before_); }

bool usable() {
  // A oneDNN that was built on another pool of threads would not listen to OpenMP's settings.
  static const bool result = [] {
    unsigned runtime = dnnl_version()->cpu_runtime;
    return runtime == DNNL_RUNTIME_OMP || runtime == DNNL_RUNTIME_SEQ;
  }();
  return result;
}

const dnnl::engine& engine() {
  static const dnnl::engine& instance = *new dnnl::engine(dnnl::engine::kind::cpu, 0);  // threads' streams go later
  return instance;
}

dnnl::stream& stream() {
  static thread_local auto instance = dnnl::stream(engine());
  return instance;
}

bool has_type(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

dnnl::memory::data_type type_of(DType dtype) {
  BONFIRE_CHECK(has_type(dtype), "oneDNN is not used for {}", name_of(dtype));
  return dtype == DType::f32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

dnnl::memory::dims dims_of(const Shape& shape) { return {shape.extents().begin(), shape.extents().end()}; }

dnnl::memory::desc desc_of(const Shape& shape, DType dtype, const Layout& layout) {
  if (layout.block == 0) return dnnl::memory::desc(dims_of(shape), type_of(dtype), dims_of(strides_of(shape, layout)));
  BONFIRE_CHECK(layout.block == 16 && shape.rank() == 4 && layout.order.rank() == 0, "layout {}", to_string(layout));
  return dnnl::memory::desc(dims_of(shape), type_of(dtype), dnnl::memory::format_tag::nChw16c);
}

dnnl::memory memory_at(const dnnl::memory::desc& desc, void* data) { return dnnl::memory(desc, engine(), data); }

dnnl::primitive_attr attributes(int64_t activation) {
  using F = ElementwiseFunction;
  using Algorithm = dnnl::algorithm;
  dnnl::primitive_attr result;
  result.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (activation < 0) return result;
  Algorithm algorithm = [&] {
    switch (static_cast<F>(activation)) {
      case F::relu: return Algorithm::eltwise_relu;
      case F::gelu: return Algorithm::eltwise_gelu_erf;
      case F::gelu_tanh: return Algorithm::eltwise_gelu_tanh;
      case F::tanh: return Algorithm::eltwise_tanh;
      case F::sigmoid: return Algorithm::eltwise_logistic;
      default: return Algorithm::eltwise_swish;
    }
  }();
  dnnl::post_ops operations;
  operations.append_eltwise(1, algorithm, algorithm == Algorithm::eltwise_swish ? 1 : 0, 0);
  result.set_post_ops(operations);
  return result;
}

bool is_reference(const std::string& implementation) { return implementation.find("ref") != std::string::npos; }

std::vector<Range> cut(int64_t count, int64_t parts) {
  parts = std::max<int64_t>(1, std::min(parts, count));
  std::vector<Range> ranges;
  int64_t begin = 0;
  for (int64_t i = 0; i < parts; ++i) {
    int64_t next = count / parts + (i < count % parts ? 1 : 0);
    ranges.push_back({begin, next});
    begin += next;
  }
  return ranges;
}

WeightReorder::WeightReorder(const dnnl::memory::desc& from, const dnnl::memory::desc& to, int64_t parts) {
  OneThread alone;
  constexpr int64_t kWholeBlocks = 64;  // a multiple of every block that oneDNN's forms have along the first axis
  dnnl::memory::dims dims = from.dims();
  auto add = [&](const dnnl::memory::desc& source, const dnnl::memory::desc& target) {
    parts_.push_back({dnnl::reorder(dnnl::reorder::primitive_desc(engine(), source, engine(), target, attributes())),
                      memory_at(source, nullptr), memory_at(target, nullptr)});
  };
  int64_t rows = dims[0];
  if (parts > 1 && rows >= 2 * kWholeBlocks && rows % kWholeBlocks == 0) {
    try {
      for (const Range& range : cut(rows / kWholeBlocks, parts)) {
        dnnl::memory::dims size = dims, offset(dims.size(), 0);
        size[0] = range.count * kWholeBlocks;
        offset[0] = range.begin * kWholeBlocks;
        add(from.submemory_desc(size, offset), to.submemory_desc(size, offset));
      }
      return;
    } catch (const dnnl::error&) {
      parts_.clear();  // a form that cannot be cut
    }
  }
  add(from, to);
}

void WeightReorder::run(void* source, void* target, ThreadPool& threads) {
  threads.run(static_cast<int64_t>(parts_.size()), [&](int64_t index) {
    OneThread alone;
    Part& part = parts_[static_cast<size_t>(index)];
    part.source.set_data_handle(source);
    part.target.set_data_handle(target);
    part.reorder.execute(stream(), part.source, part.target);
  });
}

}  // namespace bonfire::onednn
