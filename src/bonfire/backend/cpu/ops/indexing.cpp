// CPU kernels of ops/indexing.h.
//
// Sums over an index are deterministic: positions are first grouped by the row they name, in order (a counting sort),
// then each row of the result is added up by one thread, in f32 or wider, and written once.

#include <algorithm>
#include <cstring>
#include <string>

#include "bonfire/base/error.h"
#include "bonfire/kernel/kernel.h"

namespace bonfire::cpu {

namespace {

constexpr int64_t kGrain = 16384;  // elements worth a thread of their own
constexpr int64_t kColumns = 256;  // of a row that is being added up

template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>, float, T>;

template <class T>
constexpr bool kAddsInPlace = std::is_same_v<T, Accumulator<T>>;

int64_t checked(const std::string& op, int64_t index, int64_t extent) {
  if (index < 0 || index >= extent) [[unlikely]]
    throw_error<DataError>("[{}] index {} is out of range, expected 0 to {}", op, index, extent - 1);
  return index;
}

// Calls body(TypeTag<T>{}) with the C++ type of an index.
template <class Body>
decltype(auto) dispatch_index(DType dtype, Body&& body) {
  if (dtype == DType::i32) return body(TypeTag<int32_t>{});
  return body(TypeTag<int64_t>{});
}

int64_t count_before(const Shape& shape, int axis) {
  int64_t count = 1;
  for (int i = 0; i < axis; ++i) count *= shape[i];
  return count;
}
int64_t count_after(const Shape& shape, int axis) {
  int64_t count = 1;
  for (int i = axis + 1; i < shape.rank(); ++i) count *= shape[i];
  return count;
}

// embedding and index_select: data [outer, extent, inner] → [outer, index, inner].
struct RowSelection {
  std::string op;
  int64_t outer, extent, inner, count;  // count: of the index
  size_t element_bytes;

  template <class Index>
  void run(const std::byte* data, const Index* index, std::byte* target, ThreadPool& threads) const {
    auto row_bytes = static_cast<size_t>(inner) * element_bytes;
    threads.parallel_for(outer * count, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, inner)),
                         [&](int64_t begin, int64_t end) {
                           for (int64_t i = begin; i < end; ++i) {
                             int64_t row = i / count * extent + checked(op, index[i % count], extent);
                             std::memcpy(target + static_cast<size_t>(i) * row_bytes,
                                         data + static_cast<size_t>(row) * row_bytes, row_bytes);
                           }
                         });
  }
};

std::vector<Candidate> select_rows(const KernelRequest& request, int axis) {
  const TensorSpec &data = request.node.inputs[0].spec(), &index = request.node.inputs[1].spec();
  RowSelection selection{request.node.op->name, count_before(data.shape, axis),
                         data.shape[axis],      count_after(data.shape, axis),
                         index.shape.count(),   size_of(data.dtype)};
  return dispatch_index(index.dtype, [&](auto tag) {
    using Index = typename decltype(tag)::type;
    return one_candidate(request, [selection](const Run& run) {
      selection.run(run.input<std::byte>(0), run.input<Index>(1), run.output<std::byte>(), *run.threads);
    });
  });
}

std::vector<Candidate> index_select(const KernelRequest& request) {
  return select_rows(request, static_cast<int>(request.node.attributes.integer("axis")));
}
std::vector<Candidate> embedding(const KernelRequest& request) { return select_rows(request, 0); }

// embedding_gradient, with or without something to add to, and index_add: values [outer, index, inner] → sums [outer,
// extent, inner].
struct RowSums {
  std::string op;
  int64_t outer, extent, inner, count;  // count: of the index
  int64_t left_out;                     // a row that stays zero, or -1

  size_t workspace_bytes() const { return static_cast<size_t>(extent + 1 + count) * sizeof(int64_t); }

  // After it, positions that name row r are order[starts[r]] to order[starts[r + 1] - 1], rising.
  template <class Index>
  void group(const Index* index, int64_t* starts, int64_t* order) const {
    std::fill_n(starts, extent + 1, 0);
    for (int64_t i = 0; i < count; ++i) ++starts[checked(op, index[i], extent)];
    int64_t total = 0;
    for (int64_t row = 0; row < extent; ++row) total = starts[row] += total;
    starts[extent] = total;
    for (int64_t i = count - 1; i >= 0; --i) order[--starts[index[i]]] = i;  // from the ends back to the starts
  }

  // Sums begin with those of `start`, which may be the target, or with zeros where it is null.
  template <class T, class Index>
  void run(const T* values, const Index* index, const T* start, T* target, int64_t* workspace,
           ThreadPool& threads) const {
    int64_t *starts = workspace, *order = workspace + extent + 1;
    group(index, starts, order);
    int64_t tiles = (inner + kColumns - 1) / kColumns;
    int64_t grain = std::max<int64_t>(1, kGrain / std::clamp<int64_t>(inner, 1, kColumns));
    threads.parallel_for(outer * extent * tiles, grain, [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; ++unit) {
        int64_t column = unit % tiles * kColumns, row = unit / tiles % extent, block = unit / tiles / extent;
        int64_t columns = std::min(kColumns, inner - column);
        int64_t last = row == left_out ? starts[row] : starts[row + 1];
        if (start == target && starts[row] == last) continue;
        const int64_t place = (block * extent + row) * inner + column;
        Accumulator<T> sums[kColumns] = {};
        for (int64_t c = 0; start != nullptr && c < columns; ++c)
          sums[c] = static_cast<Accumulator<T>>(start[place + c]);
        for (int64_t i = starts[row]; i < last; ++i) {
          const T* source = values + (block * count + order[i]) * inner + column;
          for (int64_t c = 0; c < columns; ++c) sums[c] += static_cast<Accumulator<T>>(source[c]);
        }
        for (int64_t c = 0; c < columns; ++c) target[place + c] = static_cast<T>(sums[c]);
      }
    });
  }
};

std::vector<Candidate> sum_rows(const KernelRequest& request, const RowSums& sums) {
  return dispatch(request.node.outputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return dispatch_index(request.node.inputs[1].spec().dtype, [&](auto index_tag) {
      using Index = typename decltype(index_tag)::type;
      const bool adds = request.node.inputs.size() > 2;
      std::vector<Candidate> list = one_candidate(request, [sums, adds](const Run& run) {
        sums.run(run.input<T>(0), run.input<Index>(1), adds ? run.input<T>(2) : nullptr, run.output<T>(),
                 static_cast<int64_t*>(run.workspace), *run.threads);
      });
      if (adds) list[0].in_place = {{0, 2}};
      list[0].workspace_bytes = sums.workspace_bytes();
      return list;
    });
  });
}

std::vector<Candidate> index_add(const KernelRequest& request) {
  const Shape& target = request.node.outputs[0].shape;
  int axis = static_cast<int>(request.node.attributes.integer("axis"));
  return sum_rows(request, {"index_add", count_before(target, axis), target[axis], count_after(target, axis),
                            request.node.inputs[1].spec().shape.count(), -1});
}

std::vector<Candidate> embedding_gradient(const KernelRequest& request) {
  const Shape& target = request.node.outputs[0].shape;
  return sum_rows(request, {"embedding_gradient", 1, target[0], target[1], request.node.inputs[1].spec().shape.count(),
                            request.node.attributes.integer("padding_index")});
}

// gather and scatter_add. A lane is one place on all axes but the indexed one; the index has `count` entries a lane.
struct Lanes {
  std::string op;
  int64_t extent, stride, count;      // of the indexed axis in the data; entries of the index there
  std::vector<int64_t> outer, inner;  // offsets in the data of the places before and after that axis

  Lanes(std::string name, const Shape& data, const Shape& index, int axis)
      : op(std::move(name)), extent(data[axis]), stride(count_after(data, axis)), count(index[axis]) {
    outer = offsets(data, index, 0, axis);
    inner = offsets(data, index, axis + 1, data.rank());
  }

  static std::vector<int64_t> offsets(const Shape& data, const Shape& index, int first, int last) {
    Shape strides = row_major_strides(data);
    std::vector<int64_t> result{0};
    for (int axis = first; axis < last; ++axis) {
      std::vector<int64_t> longer;
      for (int64_t offset : result)
        for (int64_t i = 0; i < index[axis]; ++i) longer.push_back(offset + i * strides[axis]);
      result = std::move(longer);
    }
    return result;
  }

  // Calls body(position in the index, offset in the data) for every entry; a lane's entries in order on one thread.
  template <class Index, class Body>
  void for_each(const Index* index, ThreadPool& threads, const Body& body) const {
    auto inner_count = static_cast<int64_t>(inner.size());
    int64_t lanes = static_cast<int64_t>(outer.size()) * inner_count;
    threads.parallel_for(lanes, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, count)),
                         [&](int64_t begin, int64_t end) {
                           while (begin < end) {
                             int64_t block = begin / inner_count, first = begin % inner_count;
                             int64_t past = std::min(inner_count, first + end - begin);
                             visit(index, block, first, past, body);
                             begin += past - first;
                           }
                         });
  }

 private:
  template <class Index, class Body>
  void visit(const Index* index, int64_t block, int64_t first, int64_t past, const Body& body) const {
    auto inner_count = static_cast<int64_t>(inner.size());
    for (int64_t i = 0; i < count; ++i)
      for (int64_t lane = first; lane < past; ++lane) {
        int64_t position = (block * count + i) * inner_count + lane;
        body(position, outer[static_cast<size_t>(block)] + checked(op, index[position], extent) * stride +
                           inner[static_cast<size_t>(lane)]);
      }
  }
};

// gather only moves elements: it knows their size alone.
template <class Word>
std::vector<Candidate> gather_words(const KernelRequest& request) {
  const TensorSpec &data = request.node.inputs[0].spec(), &index = request.node.inputs[1].spec();
  Lanes lanes("gather", data.shape, index.shape, static_cast<int>(request.node.attributes.integer("axis")));
  return dispatch_index(index.dtype, [&](auto tag) {
    using Index = typename decltype(tag)::type;
    return one_candidate(request, [lanes](const Run& run) {
      const auto* source = run.input<Word>(0);
      auto* target = run.output<Word>();
      lanes.for_each(run.input<Index>(1), *run.threads,
                     [&](int64_t position, int64_t offset) { target[position] = source[offset]; });
    });
  });
}

std::vector<Candidate> gather(const KernelRequest& request) {
  switch (size_of(request.node.outputs[0].dtype)) {
    case 1: return gather_words<uint8_t>(request);
    case 2: return gather_words<uint16_t>(request);
    case 4: return gather_words<uint32_t>(request);
    default: return gather_words<uint64_t>(request);
  }
}

std::vector<Candidate> scatter_add(const KernelRequest& request) {
  const TensorSpec &target = request.node.outputs[0], &index = request.node.inputs[1].spec();
  Lanes lanes("scatter_add", target.shape, index.shape, static_cast<int>(request.node.attributes.integer("axis")));
  int64_t elements = target.shape.count();
  return dispatch(target.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Sum = Accumulator<T>;
    return dispatch_index(index.dtype, [&](auto index_tag) {
      using Index = typename decltype(index_tag)::type;
      std::vector<Candidate> list = one_candidate(request, [lanes, elements](const Run& run) {
        const T* source = run.input<T>(0);
        T* result = run.output<T>();
        Sum* sums = static_cast<Sum*>(kAddsInPlace<T> ? static_cast<void*>(result) : run.workspace);
        std::fill_n(sums, elements, Sum(0));
        lanes.for_each(run.input<Index>(1), *run.threads, [&](int64_t position, int64_t offset) {
          sums[offset] = static_cast<Sum>(sums[offset] + static_cast<Sum>(source[position]));
        });
        if constexpr (!kAddsInPlace<T>)
          for (int64_t i = 0; i < elements; ++i) result[i] = static_cast<T>(sums[i]);
      });
      if (!kAddsInPlace<T>) list[0].workspace_bytes = static_cast<size_t>(elements) * sizeof(Sum);
      return list;
    });
  });
}

std::vector<Candidate> one_hot(const KernelRequest& request) {
  const TensorSpec& ids = request.node.inputs[0].spec();
  int64_t count = ids.shape.count(), classes = request.node.attributes.integer("classes");
  return dispatch(request.node.outputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return dispatch_index(ids.dtype, [&](auto index_tag) {
      using Index = typename decltype(index_tag)::type;
      return one_candidate(request, [count, classes, op = request.node.op->name](const Run& run) {
        const auto* index = run.input<Index>(0);
        T* target = run.output<T>();  // [count, classes]
        std::fill_n(target, count * classes, T(0));
        for (int64_t i = 0; i < count; ++i) target[i * classes + checked(op, index[i], classes)] = T(1);
      });
    });
  });
}

[[maybe_unused]] const bool registered[] = {
    register_kernel("index_select", DeviceType::cpu, index_select),
    register_kernel("index_add", DeviceType::cpu, index_add),
    register_kernel("embedding", DeviceType::cpu, embedding),
    register_kernel("embedding_gradient", DeviceType::cpu, embedding_gradient),
    register_kernel("embedding_gradient_add", DeviceType::cpu, embedding_gradient),
    register_kernel("gather", DeviceType::cpu, gather),
    register_kernel("scatter_add", DeviceType::cpu, scatter_add),
    register_kernel("one_hot", DeviceType::cpu, one_hot),
};

}  // namespace

}  // namespace bonfire::cpu
