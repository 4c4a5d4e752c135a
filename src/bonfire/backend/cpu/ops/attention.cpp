// Attention in blocks of queries and keys. A block of scores is made, used and forgotten, so the whole matrix [T, S]
// never exists. Going forward, the softmax over all keys is put together block by block: with the largest score so far,
// m, and the sum of exp(score − m), earlier results are scaled by exp(old m − new m) whenever a larger score appears.
// Going backward, log_sum gives each probability at once: exp(score − log_sum).

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "bonfire/backend/cpu/device/threads.h"
#include "bonfire/backend/cpu/gemm/gemm.h"
#include "bonfire/backend/cpu/gemm/gemm_driver.h"
#include "bonfire/backend/cpu/gemm/packed_product.h"
#include "bonfire/backend/cpu/ops/random_blocks.h"
#include "bonfire/backend/cpu/simd/every_instruction_set.h"
#include "bonfire/backend/cpu/simd/floating.h"
#include "bonfire/base/vector_math.h"

namespace bonfire::cpu {

namespace {

using base::quick_exponential;

constexpr int64_t kQueries = 128, kKeys = 128;  // of a block
constexpr int64_t kLeastPacked = 32;            // rows, columns and depth of products that are worth packing for

struct AttentionShape {
  int64_t heads_in_batch, heads;            // H, and B · H
  int64_t queries, keys, features, values;  // T, S, D, E
  bool causal, has_mask;
  double scale;
  DType mask_type = DType::f32;
  std::array<int64_t, 4> mask_strides{};  // over [B, H, T, S], elements; 0 where it is broadcast
  size_t mask_input, key_input;
  double dropout;
  uint64_t number;      // of the op within the step
  RandomPlaces places;  // of the weights [B, H, T, S], for dropout

  // q, k, v are the inputs from `first` on; the mask and the key of dropout come after them.
  AttentionShape(const GraphNode& node, size_t first) {
    const Shape &q = node.inputs[first].spec().shape, &v = node.inputs[first + 2].spec().shape;
    heads_in_batch = q[1], heads = q[0] * q[1];
    queries = q[2], keys = v[2], features = q[3], values = v[3];
    causal = node.attributes.flag("causal");
    scale = node.attributes.number("scale");
    has_mask = node.attributes.flag("has_mask");
    dropout = node.attributes.number("dropout");
    number = static_cast<uint64_t>(node.attributes.integer("number"));
    places = RandomPlaces::of({q[0], q[1], queries, keys}, node.attributes);
    mask_input = first + 3;
    key_input = mask_input + (has_mask ? 1 : 0);
    if (!has_mask) return;
    const TensorSpec& mask = node.inputs[mask_input].spec();
    mask_type = mask.dtype;
    Shape strides = row_major_strides(mask.shape);
    for (int i = 0; i < mask.shape.rank(); ++i)
      if (mask.shape[i] != 1) mask_strides[size_t{4} - static_cast<size_t>(mask.shape.rank() - i)] = strides[i];
  }

  int64_t query_blocks() const { return (queries + kQueries - 1) / kQueries; }
  int64_t mask_offset(int64_t head, int64_t query, int64_t key) const {
    return head / heads_in_batch * mask_strides[0] + head % heads_in_batch * mask_strides[1] + query * mask_strides[2] +
           key * mask_strides[3];
  }
};

// Queries [query, query + rows) of a head against keys [key, key + columns).
struct Block {
  int64_t head = 0;  // counted over [B, H]
  int64_t query = 0, rows = 0;
  int64_t key = 0, columns = 0;
};

// Aligned parts of a thread's scratch memory; without memory it counts how much there must be.
class Scratch {
 public:
  explicit Scratch(std::byte* memory) : memory_(memory) {}

  template <class T>
  T* take(int64_t count) {
    auto* part = reinterpret_cast<T*>(memory_ + used_);
    used_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return part;
  }
  size_t used() const { return used_; }

 private:
  std::byte* memory_;
  size_t used_ = 0;
};

// The work that both directions share. Products are serial: threads share out heads and blocks.
template <class T>
struct Blocks {
  using Acc = Compute<T>;
  AttentionShape shape;

  // [rows, depth] times the transpose of [columns, depth]: scores, and the gradient of probabilities.
  Gemm against(int64_t rows, int64_t columns, int64_t depth) const {
    return gemm_of(rows, columns, depth, depth, depth, kKeys);
  }
  // Adds a block [rows, columns] times [columns, width].
  Gemm gather(int64_t rows, int64_t columns, int64_t width) const {
    Gemm g = gemm_of(rows, width, columns, kKeys, width, width);
    g.transpose_b = false;
    g.accumulate = true;
    return g;
  }
  // Adds the transpose of a block [rows, columns] times [rows, width].
  Gemm scatter(int64_t rows, int64_t columns, int64_t width) const {
    Gemm g = gemm_of(columns, width, rows, kKeys, width, width);
    g.transpose_b = false;
    g.transpose_a = true;
    g.accumulate = true;
    return g;
  }

  // Enough for every product of blocks at the edge and inside.
  size_t gemm_bytes() const {
    size_t most = 0;
    for (int64_t rows : {std::min(kQueries, shape.queries), shape.queries % kQueries})
      for (int64_t columns : {std::min(kKeys, shape.keys), shape.keys % kKeys})
        for (int64_t width : {shape.features, shape.values})
          for (const Gemm& g :
               {against(rows, columns, width), gather(rows, columns, width), scatter(rows, columns, width)})
            most = std::max(most, is_packed(g) ? packed(g).a_bytes(g.m) + packed(g).b_bytes() : gemm_workspace(g, 1));
    return most;
  }

  static void multiply(const Gemm& g, const T* a, const T* b, Acc* c, std::span<std::byte> space) {
    static ThreadPool alone(1);
    if (!is_packed(g)) return gemm(g, a, b, nullptr, c, space, alone);
    std::byte *left = space.data(), *right = left + packed(g).a_bytes(g.m);
    packed(g).pack_b(b, Axis{{g.n, g.transpose_b ? g.ldb : 1}}, Axis{{g.k, g.transpose_b ? 1 : g.ldb}}, right);
    if (!g.transpose_a && packed(g).takes_rows(g.m))
      return packed(g).multiply_rows(g.m, a, g.lda, right, c, g.ldc, g.accumulate);
    packed(g).pack_a(a, Axis{{g.m, g.transpose_a ? 1 : g.lda}}, Axis{{g.k, g.transpose_a ? g.lda : 1}}, left);
    packed(g).multiply(g.m, left, right, c, g.ldc, g.accumulate);
  }

  // scores [rows, columns], rows kKeys apart: scale q kᵀ + mask, −∞ for keys that a query may not see.
  void scores(const Block& block, const T* q, const T* k, const void* mask, Acc* scores,
              std::span<std::byte> space) const {
    multiply(against(block.rows, block.columns, shape.features),
             q + (block.head * shape.queries + block.query) * shape.features,
             k + (block.head * shape.keys + block.key) * shape.features, scores, space);
    for (int64_t r = 0; r < block.rows; ++r) {
      Acc* row = scores + r * kKeys;
      for (int64_t j = 0; j < block.columns; ++j) row[j] *= static_cast<Acc>(shape.scale);
      if (shape.has_mask) add_mask(mask, shape.mask_offset(block.head, block.query + r, block.key), row, block.columns);
      if (!shape.causal) continue;
      int64_t visible = std::clamp<int64_t>(block.query + r + 1 - block.key, 0, block.columns);
      std::fill(row + visible, row + block.columns, -std::numeric_limits<Acc>::infinity());
    }
  }

  // What dropout multiplies the keys of a row of a block by: 0 or 1 / (1 − dropout).
  void keep_factors(const Run& run, const Block& block, int64_t r, Acc* factors) const {
    const uint64_t* key = run.input<uint64_t>(shape.key_input);  // seed, step, rank, world
    const int64_t element = (block.head * shape.queries + block.query + r) * shape.keys + block.key;
    const uint64_t first = shape.places.at(element, key[2], key[3]), step = shape.places.last_step(key[3]);
    const float dropped = static_cast<float>(shape.dropout);
    const Acc factor = static_cast<Acc>(1 / (1 - shape.dropout));
    float memory[kKeys + 6];
    const float* numbers = uniform_run(key[0], random_stream(key[1], shape.number), first, step, block.columns, memory);
    for (int64_t j = 0; j < block.columns; ++j) factors[j] = numbers[j] >= dropped ? factor : Acc(0);
  }

  // A block as an operand of the next product, in the type of the tensors.
  static const T* operand(const Block& block, const Acc* values, T* narrow) {
    if constexpr (std::is_same_v<T, Acc>) {
      return values;
    } else {
      for (int64_t r = 0; r < block.rows; ++r)
        for (int64_t j = 0; j < block.columns; ++j) narrow[r * kKeys + j] = static_cast<T>(values[r * kKeys + j]);
      return narrow;
    }
  }

 private:
  Gemm gemm_of(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc) const {
    return {.m = m,
            .n = n,
            .k = k,
            .input = dtype_of<T>(),
            .output = dtype_of<Acc>(),
            .transpose_b = true,
            .lda = lda,
            .ldb = ldb,
            .ldc = ldc};
  }

  static PackedProduct<T> packed(const Gemm& g) { return {g.n, g.k}; }

  // Whether instructions for bf16 multiply, which gemm() takes for larger products only, and rows of C have room for
  // whole vectors.
  static bool is_packed(const Gemm& g) {
    return packed(g).is_fast() && packed(g).stride() <= g.ldc && std::min({g.m, g.n, g.k}) >= kLeastPacked;
  }

  void add_mask(const void* mask, int64_t offset, Acc* row, int64_t columns) const {
    const int64_t stride = shape.mask_strides[3];
    dispatch(shape.mask_type, [&](auto tag) {
      const auto* from = static_cast<const typename decltype(tag)::type*>(mask) + offset;
      for (int64_t j = 0; j < columns; ++j) row[j] += static_cast<Acc>(from[j * stride]);
    });
  }
};

// ---- forward ----

template <class T>
struct Forward {
  using Acc = Compute<T>;
  Blocks<T> blocks;
  size_t gemm_bytes;

  struct Memory {
    Acc* scores;  // [kQueries, kKeys]
    T* narrow;    // [kQueries, kKeys]
    Acc* sums;    // [kQueries, E]
    std::span<std::byte> gemm;

    Memory(const Forward& f, Scratch& scratch)
        : scores(scratch.take<Acc>(kQueries * kKeys)),
          narrow(scratch.take<T>(std::is_same_v<T, Acc> ? 0 : kQueries * kKeys)),
          sums(scratch.take<Acc>(kQueries * f.blocks.shape.values)),
          gemm(scratch.take<std::byte>(static_cast<int64_t>(f.gemm_bytes)), f.gemm_bytes) {}
  };

  int64_t tasks() const { return blocks.shape.heads * blocks.shape.query_blocks(); }

  // Turns scores into exp(score − new largest), and scales what was summed up before.
  void absorb(const Block& block, Acc* largest, Acc* total, const Memory& memory) const {
    const int64_t values = blocks.shape.values;
    for (int64_t r = 0; r < block.rows; ++r) {
      Acc* row = memory.scores + r * kKeys;
      Acc most = std::max(largest[r], row_max<Acc>(block.columns, [&](int64_t j) { return row[j]; }));
      // Where nothing is visible yet, any finite number keeps exp(−∞ − most) at 0.
      Acc shift = most == -std::numeric_limits<Acc>::infinity() ? Acc(0) : most;
      for (int64_t j = 0; j < block.columns; ++j) row[j] = quick_exponential(row[j] - shift);
      Acc factor = quick_exponential(largest[r] - shift);
      total[r] = total[r] * factor + row_sum<Acc>(block.columns, [&](int64_t j) { return row[j]; });
      largest[r] = most;
      Acc* sums = memory.sums + r * values;
      for (int64_t e = 0; e < values; ++e) sums[e] *= factor;
    }
  }

  void run_task(const Run& run, int64_t task, const Memory& memory) const {
    const AttentionShape& shape = blocks.shape;
    Block block{.head = task / shape.query_blocks(), .query = task % shape.query_blocks() * kQueries};
    block.rows = std::min(kQueries, shape.queries - block.query);
    Acc largest[kQueries], total[kQueries] = {};
    std::fill_n(largest, kQueries, -std::numeric_limits<Acc>::infinity());
    std::fill_n(memory.sums, block.rows * shape.values, Acc(0));
    const int64_t end = shape.causal ? std::min(shape.keys, block.query + block.rows) : shape.keys;
    for (block.key = 0; block.key < end; block.key += kKeys) {
      block.columns = std::min(kKeys, shape.keys - block.key);
      blocks.scores(block, run.input<T>(0), run.input<T>(1), shape.has_mask ? run.inputs[shape.mask_input] : nullptr,
                    memory.scores, memory.gemm);
      absorb(block, largest, total, memory);
      for (int64_t r = 0; shape.dropout > 0 && r < block.rows; ++r) {
        Acc factors[kKeys], *row = memory.scores + r * kKeys;
        blocks.keep_factors(run, block, r, factors);
        for (int64_t j = 0; j < block.columns; ++j) row[j] *= factors[j];
      }
      blocks.multiply(blocks.gather(block.rows, block.columns, shape.values),
                      blocks.operand(block, memory.scores, memory.narrow),
                      run.input<T>(2) + (block.head * shape.keys + block.key) * shape.values, memory.sums, memory.gemm);
    }
    for (int64_t r = 0; r < block.rows; ++r) {
      int64_t row = block.head * shape.queries + block.query + r;
      Acc factor = total[r] == 0 ? Acc(0) : 1 / total[r];
      T* y = run.output<T>(0) + row * shape.values;
      for (int64_t e = 0; e < shape.values; ++e) y[e] = static_cast<T>(memory.sums[r * shape.values + e] * factor);
      run.output<Acc>(1)[row] = largest[r] + std::log(total[r]);
    }
  }
};

// ---- backward ----

template <class T>
struct Backward {
  using Acc = Compute<T>;
  Blocks<T> blocks;
  size_t gemm_bytes;

  struct Memory {
    Acc *p, *ds;        // [kQueries, kKeys]
    T* narrow;          // [kQueries, kKeys]
    Acc *dq, *dk, *dv;  // [T, D], [kKeys, D], [kKeys, E]
    Acc* delta;         // [T]: Σ dy y
    std::span<std::byte> gemm;

    Memory(const Backward& b, Scratch& scratch)
        : p(scratch.take<Acc>(kQueries * kKeys)),
          ds(scratch.take<Acc>(kQueries * kKeys)),
          narrow(scratch.take<T>(std::is_same_v<T, Acc> ? 0 : kQueries * kKeys)),
          dq(scratch.take<Acc>(b.blocks.shape.queries * b.blocks.shape.features)),
          dk(scratch.take<Acc>(kKeys * b.blocks.shape.features)),
          dv(scratch.take<Acc>(kKeys * b.blocks.shape.values)),
          delta(scratch.take<Acc>(b.blocks.shape.queries)),
          gemm(scratch.take<std::byte>(static_cast<int64_t>(b.gemm_bytes)), b.gemm_bytes) {}
  };

  int64_t tasks() const { return blocks.shape.heads; }

  // p = exp(score − log_sum), and ds = scale p (dy vᵀ − delta) from the dy vᵀ that ds holds; with dropout p ends up
  // without what was dropped, and so does dy vᵀ.
  void weigh(const Run& run, const Block& block, const Acc* log_sum, const Memory& memory) const {
    for (int64_t r = 0; r < block.rows; ++r) {
      Acc* __restrict p = memory.p + r * kKeys;
      Acc* __restrict ds = memory.ds + r * kKeys;
      const Acc delta = memory.delta[block.query + r], scale = static_cast<Acc>(blocks.shape.scale);
      // A query that sees nothing has log_sum −∞, and all its probabilities are 0.
      const bool blind = log_sum[r] == -std::numeric_limits<Acc>::infinity();
      const Acc shift = blind ? std::numeric_limits<Acc>::infinity() : log_sum[r];
      Acc factors[kKeys];
      if (blocks.shape.dropout > 0) {
        blocks.keep_factors(run, block, r, factors);
      } else {
        std::fill_n(factors, block.columns, Acc(1));
      }
      for (int64_t j = 0; j < block.columns; ++j) {
        const Acc probability = quick_exponential(p[j] - shift);
        ds[j] = probability * (ds[j] * factors[j] - delta) * scale;
        p[j] = probability * factors[j];
      }
    }
  }

  // One block: adds to dq of its queries, and to dk and dv of its keys.
  void run_block(const Run& run, const Block& block, const Memory& memory) const {
    const AttentionShape& shape = blocks.shape;
    const int64_t query = block.head * shape.queries + block.query, key = block.head * shape.keys + block.key;
    const T* dy = run.input<T>(0) + query * shape.values;
    const T *q = run.input<T>(3), *k = run.input<T>(4), *v = run.input<T>(5) + key * shape.values;
    blocks.scores(block, q, k, shape.has_mask ? run.inputs[shape.mask_input] : nullptr, memory.p, memory.gemm);
    blocks.multiply(blocks.against(block.rows, block.columns, shape.values), dy, v, memory.ds, memory.gemm);
    weigh(run, block, run.input<Acc>(2) + query, memory);
    blocks.multiply(blocks.scatter(block.rows, block.columns, shape.values),
                    blocks.operand(block, memory.p, memory.narrow), dy, memory.dv, memory.gemm);
    const T* ds = blocks.operand(block, memory.ds, memory.narrow);
    blocks.multiply(blocks.gather(block.rows, block.columns, shape.features), ds, k + key * shape.features,
                    memory.dq + block.query * shape.features, memory.gemm);
    blocks.multiply(blocks.scatter(block.rows, block.columns, shape.features), ds, q + query * shape.features,
                    memory.dk, memory.gemm);
  }

  void run_task(const Run& run, int64_t head, const Memory& memory) const {
    const AttentionShape& shape = blocks.shape;
    const T* dy = run.input<T>(0) + head * shape.queries * shape.values;
    const T* y = run.input<T>(1) + head * shape.queries * shape.values;
    for (int64_t i = 0; i < shape.queries; ++i)
      memory.delta[i] = row_sum<Acc>(shape.values, [&](int64_t e) {
        return static_cast<Acc>(dy[i * shape.values + e]) * static_cast<Acc>(y[i * shape.values + e]);
      });
    std::fill_n(memory.dq, shape.queries * shape.features, Acc(0));
    for (int64_t key = 0; key < shape.keys; key += kKeys) {
      const int64_t columns = std::min(kKeys, shape.keys - key);
      std::fill_n(memory.dk, columns * shape.features, Acc(0));
      std::fill_n(memory.dv, columns * shape.values, Acc(0));
      for (int64_t query = shape.causal ? key / kQueries * kQueries : 0; query < shape.queries; query += kQueries)
        run_block(run, {head, query, std::min(kQueries, shape.queries - query), key, columns}, memory);
      write(memory.dk, run.output<T>(1) + (head * shape.keys + key) * shape.features, columns * shape.features);
      write(memory.dv, run.output<T>(2) + (head * shape.keys + key) * shape.values, columns * shape.values);
    }
    write(memory.dq, run.output<T>(0) + head * shape.queries * shape.features, shape.queries * shape.features);
  }

  static void write(const Acc* from, T* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(from[i]);
  }
};

// Each task gets the scratch memory of the thread that takes it.
template <template <class> class Direction>
std::vector<Candidate> candidates(const KernelRequest& request, size_t first) {
  return for_floating(request.node.inputs[first].spec().dtype, [&](auto tag) {
    using Work = Direction<typename decltype(tag)::type>;
    Work work{{AttentionShape(request.node, first)}, 0};
    work.gemm_bytes = work.blocks.gemm_bytes();
    Scratch count(nullptr);
    typename Work::Memory(work, count);
    size_t bytes = count.used();
    int64_t slots = std::min<int64_t>(work.tasks(), cpu_threads());
    auto list = one_candidate(request, [work, bytes, slots](const Run& run) {
      for_each_task(run.threads, slots, work.tasks(), [&](int64_t slot, int64_t task) {
        Scratch scratch(static_cast<std::byte*>(run.workspace) + static_cast<size_t>(slot) * bytes);
        work.run_task(run, task, typename Work::Memory(work, scratch));
      });
    });
    list[0].workspace_bytes = static_cast<size_t>(slots) * bytes;
    return list;
  });
}

std::vector<Candidate> forward_candidates(const KernelRequest& request) { return candidates<Forward>(request, 0); }
std::vector<Candidate> backward_candidates(const KernelRequest& request) { return candidates<Backward>(request, 3); }

}  // namespace

BONFIRE_CPU_KERNELS(attention, {"attention", forward_candidates}, {"attention_gradient", backward_candidates})

}  // namespace bonfire::cpu
