// Variables take memory when they are first used, and may hold a slice.

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "bonfire/base/error.h"
#include "bonfire/graph/sliced_value.h"
#include "bonfire/graph/trace.h"
#include "bonfire/graph/variable.h"
#include "bonfire/graph/variable_copies.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/runtime/compile.h"
#include "bonfire/runtime/plan_cache.h"
#include "tests/support/expect_error.h"

namespace bonfire::lazy_variable_test {
namespace {

const TensorSpec kSpec{{4, 3}, DType::f32, {}};

bool has_memory(const Variable& variable) {
  const Buffer& buffer = variable.state().buffer;
  return buffer && buffer.storage->is_allocated();
}

// Begins with 0, 1, 2 …, and counts how often that was asked for.
Variable counted(std::atomic<int>& calls) {
  Variable variable(kSpec, "w");
  variable.set_first_values([&calls](int64_t begin, int64_t count, DType dtype, std::byte* target) {
    ++calls;
    first_values([](int64_t i) { return static_cast<float>(i); })(begin, count, dtype, target);
  });
  return variable;
}

std::vector<float> numbers(std::initializer_list<float> list) { return list; }

std::vector<float> floats(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(LazyVariable, TakesMemoryWithTheFirstSubmissionThatUsesIt) {
  std::atomic<int> calls{0};
  Variable w = counted(calls);
  Tensor total = sum(w.value() * 2.0);
  EXPECT_FALSE(has_memory(w));
  EXPECT_EQ(total.item<float>(), 132);
  EXPECT_TRUE(has_memory(w));
  EXPECT_EQ(sum(w.value()).item<float>(), 66);
  EXPECT_EQ(calls, 1);
}

TEST(LazyVariable, TakesMemoryWhenItIsSavedOrRead) {
  std::atomic<int> calls{0};
  Variable saved = counted(calls), read = counted(calls);
  EXPECT_EQ(floats(saved.save())[11], 11);
  EXPECT_EQ(read.value().to_vector<float>()[11], 11);
  EXPECT_EQ(calls, 2);
}

TEST(LazyVariable, WhatIsLoadedFirstNeedsNoFirstValues) {
  std::atomic<int> calls{0};
  Variable w = counted(calls);
  const std::vector<float> values(12, 7);
  w.load(std::as_bytes(std::span(values)));
  EXPECT_EQ(sum(w.value()).item<float>(), 84);
  EXPECT_EQ(calls, 0);
}

TEST(LazyVariable, AHandleOfBeforeKeepsTheFirstValues) {
  std::atomic<int> calls{0};
  Variable w = counted(calls);
  const Tensor before = w.value();
  const std::vector<float> values(12, 7);
  w.load(std::as_bytes(std::span(values)));
  EXPECT_EQ(sum(before).item<float>(), 66);
  EXPECT_EQ(sum(w.value()).item<float>(), 84);
}

TEST(LazyVariable, MovingAndLayingOutTakesNone) {
  std::atomic<int> calls{0};
  Variable a = counted(calls), b = counted(calls);
  a.move_to({DeviceType::cpu, 1});
  b.move_to({DeviceType::cpu, 1});
  make_contiguous(std::vector{a, b});
  EXPECT_EQ(a.state().buffer.storage, b.state().buffer.storage);
  EXPECT_FALSE(has_memory(a));
  EXPECT_EQ(floats(b.save())[5], 5);
  EXPECT_TRUE(has_memory(a));  // it is one block
  EXPECT_EQ(calls, 1);
  a.assign(a.value() + 1.0);
  EXPECT_EQ(floats(a.save())[5], 6);
  EXPECT_EQ(calls, 2);
}

TEST(LazyVariable, FirstValuesMayBeSetAnew) {
  Variable w(kSpec);
  w.assign(w.value() + 3.0);
  EXPECT_EQ(floats(w.save())[2], 3);
  const Tensor before = w.value();
  w.set_first_values(first_values([](int64_t) { return 5.0F; }));
  EXPECT_EQ(floats(w.save())[2], 5);
  w.set_first_values({});
  EXPECT_EQ(floats(w.save())[2], 0);
  EXPECT_EQ(before.to_vector<float>()[2], 3);
}

TEST(SlicedVariable, MakesItsPartOfTheFirstValues) {
  std::atomic<int> calls{0};
  Variable rows = counted(calls), flat = counted(calls);
  rows.keep_slice(Slice::part({4, 3}, 0, 1, 2));
  flat.keep_slice(Slice::range({4, 3}, 2, 5));
  EXPECT_EQ(rows.shape(), (Shape{4, 3}));
  EXPECT_EQ(rows.stored_spec().shape, (Shape{2, 3}));
  EXPECT_EQ(floats(rows.save_stored()), numbers({6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(flat.stored().to_vector<float>(), numbers({2, 3, 4}));
  EXPECT_EQ(flat.state().buffer.storage->bytes(), 3 * sizeof(float));
}

TEST(SlicedVariable, KeepsAPartOfItsValues) {
  std::atomic<int> calls{0};
  Variable w = counted(calls);
  w.assign(w.value() + 10.0);
  w.keep_slice(Slice::part({4, 3}, 1, 0, 3));
  EXPECT_EQ(floats(w.save_stored()), numbers({10, 13, 16, 19}));
  w.keep_slice(Slice::box({4, 3}, {1, 0}, {2, 1}));  // a part of that
  EXPECT_EQ(floats(w.save_stored()), numbers({13, 16}));
  EXPECT_ERROR(w.keep_slice(Slice({4, 3})), GraphError, "of variable w only [1:3, 0:1] of [4, 3] is here");
  EXPECT_ERROR(w.keep_slice(Slice({3, 4})), ShapeError, "the slice is all of [3, 4]");
}

TEST(SlicedVariable, TakesItsPartOfWhatIsLoaded) {
  Variable w(kSpec);
  w.keep_slice(Slice::range({4, 3}, 5, 8));
  std::vector<float> values(12);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  w.load(std::as_bytes(std::span(values)));
  EXPECT_EQ(floats(w.save_stored()), numbers({5, 6, 7}));
  EXPECT_ERROR(w.load_stored(std::as_bytes(std::span(values))), ShapeError, "elements 5 to 8 of [4, 3] is here");
}

TEST(SlicedVariable, IsNeverReadAsIfItWereWhole) {
  std::atomic<int> calls{0};
  Variable w = counted(calls);
  w.keep_slice(Slice::part({4, 3}, 0, 0, 2));
  EXPECT_ERROR(w.save(), GraphError, "fleet::gather()");
  EXPECT_EQ(w.value().shape(), (Shape{4, 3}));  // shape rules see the whole
  EXPECT_ERROR(w.value().to_vector<float>(), GraphError, "variable w is whole in this step");
  EXPECT_ERROR(sum(w.value()).item(), GraphError, "fleet::gather()");
  w.assign(w.value() * 2.0);
  EXPECT_ERROR(commit(), GraphError, "[0:2, 0:3] of [4, 3]");
  EXPECT_EQ(floats(w.save_stored()), numbers({0, 1, 2, 3, 4, 5}));
}

TEST(SlicedVariable, IsComputedWithByItsPart) {
  std::atomic<int> calls{0};
  Variable w = counted(calls);
  w.keep_slice(Slice::part({4, 3}, 1, 2, 3));
  w.assign_stored(w.stored() * 2.0);
  EXPECT_EQ(w.stored().to_vector<float>(), numbers({4, 10, 16, 22}));
  EXPECT_ERROR(w.assign_stored(Tensor::from<float>({1, 2}, {2})), ShapeError, "[0:4, 2:3] of [4, 3] is here");
}

TEST(SlicedVariable, HasAGradientOfItsSlice) {
  Variable w(kSpec, "w");
  w.set_requires_grad(true);
  w.keep_slice(Slice::part({4, 3}, 0, 1, 2));
  sum(w.stored() * 3.0).backward();
  EXPECT_EQ(w.grad_variable().stored_spec().shape, (Shape{2, 3}));
  EXPECT_EQ(w.grad_variable().stored().to_vector<float>(), (std::vector<float>(6, 3)));
  w.clear_grad();
  sum(w.value()).backward();  // seen whole, it flows back through the placeholder
  EXPECT_EQ(w.grad_variable().shape(), (Shape{4, 3}));
  EXPECT_ERROR(commit(), GraphError, "is whole in this step");
}

TEST(SlicedVariable, MovesAndIsCopiedWithItsSlice) {
  std::atomic<int> calls{0};
  Variable w = counted(calls), used = counted(calls);
  const Slice slice = Slice::part({4, 3}, 0, 1, 4);
  for (const Variable& one : {w, used}) one.keep_slice(slice);
  EXPECT_EQ(floats(used.save_stored()), numbers({3, 4, 5}));
  for (const Variable& one : {w, used}) {
    one.move_to({DeviceType::cpu, 1});
    EXPECT_EQ(one.stored_spec().device, (Device{DeviceType::cpu, 1}));
    EXPECT_EQ(floats(one.save_stored()), numbers({3, 4, 5}));
  }
  VariableCopies copies;
  copies.add(w, {DeviceType::cpu, 2});
  EXPECT_EQ(copies.find(w)->slice(), slice);
}

TEST(SlicedVariable, IsPartOfThePlansKey) {
  auto step = [](const Slice& slice) {
    Variable w(kSpec);
    w.keep_slice(slice);
    w.assign_stored(w.stored() + 1.0);
    commit();
  };
  step(Slice::part({4, 3}, 0, 0, 2));
  const auto before = runtime::cache_statistics().compiled;
  step(Slice::part({4, 3}, 0, 0, 2));
  EXPECT_EQ(runtime::cache_statistics().compiled, before);
  step(Slice::part({4, 3}, 0, 1, 2));  // the same spec, another part
  EXPECT_EQ(runtime::cache_statistics().compiled, before + 1);
}

TEST(SlicedVariable, IsPartOfACompiledStepsKey) {
  Variable w(kSpec);
  w.keep_slice(Slice::part({4, 3}, 0, 0, 2));
  CompiledStep step([&](std::span<const Tensor>) -> std::vector<Tensor> { return {sum(w.stored() + 1.0)}; });
  EXPECT_EQ(step.run({})[0].item<float>(), 6);
  EXPECT_EQ(step.run({})[0].item<float>(), 6);
  EXPECT_EQ(step.traced(), 1);
  w.keep_slice(Slice::part({4, 3}, 0, 0, 4));
  EXPECT_EQ(step.run({})[0].item<float>(), 3);
  EXPECT_EQ(step.traced(), 2);
}

}  // namespace
}  // namespace bonfire::lazy_variable_test
