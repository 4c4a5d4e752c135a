#include "tests/comm/collective_reference.h"

#include <algorithm>
#include <cstring>

#include "bonfire/graph/op.h"
#include "bonfire/kernel/kernel.h"

namespace bonfire::testing {
namespace {

using comm::Reduce;

// Extents before, along and after a dimension.
struct Blocks {
  size_t before = 1, extent = 1, after = 1;
  Blocks(const Shape& shape, int dim) {
    for (int i = 0; i < shape.rank(); ++i)
      (i < dim ? before : i == dim ? extent : after) *= static_cast<size_t>(shape[i]);
  }
};

double reduced(double a, double b, Reduce reduce, DType dtype) {
  if (dtype == DType::boolean) return a != 0 || b != 0 ? 1 : 0;
  return reduce == Reduce::max ? std::max(a, b) : a + b;
}

OutputSpecs same_spec(const InferContext& context) { return {context.input(0)}; }
const Op& lying_as_op = register_op({.name = "lying_as_for_test", .infer = same_spec});
const bool lying_as_kernel = register_kernel("lying_as_for_test", DeviceType::cpu, [](const KernelRequest& request) {
  Layout layout;
  layout.order = request.node.attributes.ints("order");
  std::vector<Candidate> list = one_candidate(request, [layout, spec = request.node.outputs[0]](const Run& run) {
    convert_layout(run.inputs[0], {}, run.outputs[0], layout, spec.shape, spec.dtype);
  });
  list[0].output_layouts[0] = layout;
  return list;
});

}  // namespace

Array whole_numbers(const Shape& shape, int rank, int seed) {
  Array array{shape, std::vector<double>(static_cast<size_t>(shape.count()))};
  for (size_t i = 0; i < array.values.size(); ++i)
    array.values[i] =
        static_cast<double>((i * 7 + static_cast<size_t>(rank) * 29 + (i >> 5) + static_cast<size_t>(seed) * 13) % 101);
  return array;
}

Array part(const Array& array, int dim, int index, int parts) {
  Array result{array.shape, {}};
  result.shape[dim] /= parts;
  const Blocks from(array.shape, dim);
  const size_t piece = from.extent / static_cast<size_t>(parts) * from.after;
  for (size_t i = 0; i < from.before; ++i) {
    auto begin =
        array.values.begin() + static_cast<int64_t>(i * from.extent * from.after + static_cast<size_t>(index) * piece);
    result.values.insert(result.values.end(), begin, begin + static_cast<int64_t>(piece));
  }
  return result;
}

Array side_by_side(const Arrays& parts, int dim) {
  Array result{parts[0].shape, {}};
  result.shape[dim] *= static_cast<int64_t>(parts.size());
  const Blocks one(parts[0].shape, dim);
  const auto piece = static_cast<int64_t>(one.extent * one.after);
  for (size_t i = 0; i < one.before; ++i)
    for (const Array& array : parts) {
      auto begin = array.values.begin() + static_cast<int64_t>(i) * piece;
      result.values.insert(result.values.end(), begin, begin + piece);
    }
  return result;
}

Array rounded(Array array, DType dtype) {
  dispatch(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (double& value : array.values) {
      if constexpr (std::is_same_v<T, bool>)
        value = static_cast<int64_t>(value) % 2 != 0 ? 1 : 0;
      else if constexpr (std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>)
        value = static_cast<double>(static_cast<float>(T(static_cast<float>(value))));
      else if constexpr (std::is_integral_v<T>)
        value = static_cast<double>(static_cast<T>(static_cast<int64_t>(value)));
      else
        value = static_cast<double>(static_cast<T>(value));
    }
  });
  return array;
}

Arrays all_reduced(const Arrays& of_ranks, Reduce reduce, DType dtype) {
  Array result = of_ranks[0];
  for (size_t rank = 1; rank < of_ranks.size(); ++rank)
    for (size_t i = 0; i < result.values.size(); ++i)
      result.values[i] = reduced(result.values[i], of_ranks[rank].values[i], reduce, dtype);
  const auto ranks = static_cast<double>(of_ranks.size());
  if (reduce == Reduce::mean)
    for (double& value : result.values)
      value = dtype == DType::f64 ? value / ranks : static_cast<float>(value) / static_cast<float>(ranks);
  return Arrays(of_ranks.size(), rounded(std::move(result), dtype));
}

Arrays all_gathered(const Arrays& of_ranks, int dim) { return Arrays(of_ranks.size(), side_by_side(of_ranks, dim)); }

Arrays reduce_scattered(const Arrays& of_ranks, int dim, Reduce reduce, DType dtype) {
  const Arrays whole = all_reduced(of_ranks, reduce, dtype);
  Arrays result;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank)
    result.push_back(part(whole[rank], dim, static_cast<int>(rank), static_cast<int>(of_ranks.size())));
  return result;
}

Arrays exchanged(const Arrays& of_ranks, int split, int join) {
  const auto ranks = static_cast<int>(of_ranks.size());
  Arrays result;
  for (int rank = 0; rank < ranks; ++rank) {
    Arrays parts;
    for (const Array& array : of_ranks) parts.push_back(part(array, split, rank, ranks));
    result.push_back(side_by_side(parts, join));
  }
  return result;
}

Tensor tensor_of(const Array& array, DType dtype, Device device) {
  std::vector<std::byte> bytes(array.values.size() * size_of(dtype));
  dispatch(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (size_t i = 0; i < array.values.size(); ++i) {
      T element;
      if constexpr (std::is_same_v<T, bool>)
        element = static_cast<int64_t>(array.values[i]) % 2 != 0;
      else if constexpr (std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>)
        element = T(static_cast<float>(array.values[i]));
      else
        element = static_cast<T>(array.values[i]);
      std::memcpy(bytes.data() + i * sizeof(T), &element, sizeof(T));
    }
  });
  return Tensor::from_bytes(bytes, {array.shape, dtype, device});
}

Array array_of(const Tensor& tensor) { return {tensor.shape(), tensor.to_vector<double>()}; }

Tensor lying_as(const Tensor& value, const Shape& order) {
  if (order.rank() == 0) return value;
  return trace_op(lying_as_op, {value}, {{"order", order}});
}

}  // namespace bonfire::testing
