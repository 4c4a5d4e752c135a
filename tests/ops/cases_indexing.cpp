// Rows for ops/indexing.h and ops/creation.h.

#include "bonfire/base/error.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/indexing.h"
#include "tests/ops/op_case.h"

namespace bonfire::op_test::cases_indexing {
namespace {

bool add_indexing() {
  return add_op_cases({
      {.name = "gather/last",
       .inputs = {given({2, 3}, {1, 2, 3, 4, 5, 6}), given({2, 2}, {2, 0, 1, 1}, DType::i64, false)},
       .call = [](const Inputs& x) { return gather(x[0], 1, x[1]); },
       .shapes = {{2, 2}},
       .reference =
           [](const std::vector<Numbers>&) {
             return Numbers{3, 1, 5, 5};
           },
       .twice = true},
      {.name = "gather/first",
       .inputs = {floats({5, 4}), integers({7, 3}, 0, 5, DType::i32)},  // longer there, shorter elsewhere
       .call = [](const Inputs& x) { return gather(x[0], 0, x[1]); },
       .shapes = {{7, 3}},
       .twice = true},
      {.name = "gather/middle",
       .inputs = {floats({2, 5, 3}), integers({2, 4, 2}, 0, 5)},
       .call = [](const Inputs& x) { return gather(x[0], -2, x[1]); },
       .shapes = {{2, 4, 2}}},
      {.name = "gather/empty",
       .inputs = {floats({2, 5}), integers({2, 0}, 0, 5)},
       .call = [](const Inputs& x) { return gather(x[0], 1, x[1]); },
       .shapes = {{2, 0}}},
      {.name = "scatter_add/repeated",
       .inputs = {given({5}, {1, 2, 3, 4, 5}), given({5}, {2, 0, 2, 2, 0}, DType::i64, false)},
       .call = [](const Inputs& x) { return scatter_add(x[0], 0, x[1], {4}); },
       .shapes = {{4}},
       .reference =
           [](const std::vector<Numbers>&) {
             return Numbers{7, 0, 8, 0};
           },
       .twice = true},
      {.name = "index_select/middle",
       .inputs = {floats({2, 5, 3}), given({4}, {4, 0, 4, 2}, DType::i64, false)},
       .call = [](const Inputs& x) { return index_select(x[0], 1, x[1]); },
       .shapes = {{2, 4, 3}},
       .twice = true},
      {.name = "index_select/booleans",
       .inputs = {given({3}, {1, 0, 0}, DType::boolean, false), given({2}, {0, 2}, DType::i32, false)},
       .call = [](const Inputs& x) { return index_select(x[0], 0, x[1]); },
       .shapes = {{2}},
       .dtypes = {DType::boolean},
       .reference =
           [](const std::vector<Numbers>&) {
             return Numbers{1, 0};
           }},
      {.name = "embedding/sentences",
       .inputs = {floats({11, 5}), integers({2, 7}, 0, 11)},
       .call = [](const Inputs& x) { return embedding(x[0], x[1]); },
       .shapes = {{2, 7, 5}}},
      {.name = "embedding/wide_rows",
       .inputs = {floats({3, 301}), integers({9}, 0, 3, DType::i32)},
       .call = [](const Inputs& x) { return embedding(x[0], x[1]); },
       .shapes = {{9, 301}}},
      {.name = "embedding/no_ids",
       .inputs = {floats({3, 4}), integers({0}, 0, 3)},
       .call = [](const Inputs& x) { return embedding(x[0], x[1]); },
       .shapes = {{0, 4}}},
      {.name = "one_hot/matrix",
       .inputs = {given({3}, {2, 0, 1}, DType::i64, false)},
       .call = [](const Inputs& x) { return one_hot(x[0], 3); },
       .shapes = {{3, 3}},
       .dtypes = {DType::i64},
       .reference = [](const std::vector<Numbers>&) { return Numbers{0, 0, 1, 1, 0, 0, 0, 1, 0}; }},
      {.name = "one_hot/floats",
       .inputs = {integers({2, 3}, 0, 5, DType::i32)},
       .call = [](const Inputs& x) { return one_hot(x[0], 5, DType::f32); },
       .shapes = {{2, 3, 5}}},
  });
}

bool add_creation() {
  return add_op_cases({
      {.name = "zeros/matrix",
       .call =
           [](const Inputs&) {
             return zeros({3, 67});
           },
       .shapes = {{3, 67}},
       .reference = [](const std::vector<Numbers>&) { return Numbers(3 * 67, 0.0); }},
      {.name = "ones/half",
       .call = [](const Inputs&) { return ones({5}, DType::f16); },
       .shapes = {{5}},
       .dtypes = {DType::f16},
       .reference = [](const std::vector<Numbers>&) { return Numbers(5, 1.0); }},
      {.name = "constant/integer",
       .call =
           [](const Inputs&) {
             return constant(-3, {{2}, DType::i64, {}});
           },
       .shapes = {{2}},
       .dtypes = {DType::i64},
       .reference =
           [](const std::vector<Numbers>&) {
             return Numbers{-3, -3};
           }},
      {.name = "constant/bool",
       .call =
           [](const Inputs&) {
             return constant(1, {{2}, DType::boolean, {}});
           },
       .shapes = {{2}},
       .dtypes = {DType::boolean},
       .reference =
           [](const std::vector<Numbers>&) {
             return Numbers{1, 1};
           }},
      {.name = "full/number",
       .call =
           [](const Inputs&) {
             return full({2, 2}, 0.5);
           },
       .shapes = {{2, 2}},
       .reference = [](const std::vector<Numbers>&) { return Numbers(4, 0.5); }},
      {.name = "arange/up",
       .call = [](const Inputs&) { return arange(2, 7, {.step = 2}); },
       .shapes = {{3}},
       .dtypes = {DType::i64},
       .reference =
           [](const std::vector<Numbers>&) {
             return Numbers{2, 4, 6};
           }},
      {.name = "arange/down",
       .call = [](const Inputs&) { return arange(5, 0, {.step = -2, .dtype = DType::f32}); },
       .shapes = {{3}},
       .reference =
           [](const std::vector<Numbers>&) {
             return Numbers{5, 3, 1};
           }},
      {.name = "arange/nothing",
       .call = [](const Inputs&) { return arange(3, 3); },
       .shapes = {{0}},
       .dtypes = {DType::i64}},
  });
}

const bool added[] = {add_indexing(), add_creation()};

Tensor index(std::initializer_list<int64_t> values) {
  return Tensor::from<int64_t>(values, {static_cast<int64_t>(values.size())});
}

const bool errors = add_error_cases({
    error_case<ShapeError>("gather/type", [] { gather(zeros({3}), 0, zeros({2})); },
                           {"[gather]", "i32 or i64", "f32 [2]"}),
    error_case<ShapeError>("gather/extents",
                           [] {
                             gather(zeros({3, 2}), 0, zeros({3, 4}, DType::i64));
                           },
                           {"[gather]", "[3, 4]", "[3, 2]"}),
    error_case<ShapeError>("embedding/weight", [] { embedding(zeros({3}), index({0})); }, {"[embedding]", "f32 [3]"}),
    error_case<ShapeError>("index_select/rank",
                           [] {
                             index_select(zeros({3}), 0, zeros({2, 2}, DType::i64));
                           },
                           {"[index_select]", "i64 [2, 2]"}),
    error_case<DataError>("gather/out_of_range",
                          [] {
                            gather(zeros({3}), 0, index({0, 3})).to_vector<float>();
                          },
                          {"[gather]", "index 3"}),
    error_case<DataError>("embedding/out_of_range",
                          [] {
                            embedding(zeros({3, 2}), index({1, -1})).to_vector<float>();
                          },
                          {"[embedding]", "index -1"}),
    error_case<DataError>("index_select/out_of_range",
                          [] {
                            index_select(zeros({2, 3}), 1, index({7})).to_vector<float>();
                          },
                          {"[index_select]", "index 7"}),
    error_case<DataError>("scatter_add/out_of_range",
                          [] { scatter_add(zeros({1}), 0, index({9}), {4}).to_vector<float>(); },
                          {"[scatter_add]", "index 9"}),
    error_case<DataError>("one_hot/out_of_range", [] { one_hot(index({4}), 4).to_vector<float>(); },
                          {"[one_hot]", "index 4"}),
    error_case<ShapeError>("arange/step", [] { arange(0, 3, {.step = 0}); }, {"[arange]", "step"}),
    error_case<ShapeError>("zeros/negative",
                           [] {
                             zeros({2, -3});
                           },
                           {"[constant]", "[2, -3]"}),
});

}  // namespace
}  // namespace bonfire::op_test::cases_indexing
