// What models begin with: the bits that a seed gives are those that it has always given.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "bonfire/base/checksum.h"
#include "bonfire/graph/tensor.h"
#include "bonfire/models/make.h"
#include "bonfire/optim/optimizers.h"

namespace bonfire::models::first_values_test {
namespace {

// Of each variable every bit of the first elements, and of all others those of bf16: another machine's logarithm may
// round one in many millions the other way.
uint32_t first_values(const char* model) {
  constexpr size_t kExact = 256;  // elements
  manual_seed(7);
  uint32_t sum = 0;
  for (const auto& [name, variable] : make(model).state_dict()) {
    std::vector<float> values = variable.value().to_vector<float>();
    for (size_t i = kExact; i < values.size(); ++i) values[i] = static_cast<float>(bfloat16(values[i]));
    sum = base::crc32c(std::as_bytes(std::span(values)), base::crc32c(std::as_bytes(std::span(name)), sum));
  }
  return sum;
}

TEST(FirstValues, AreThoseThatASeedHasAlwaysGiven) {
  for (const auto& [model, expected] : {std::pair{"mnist_cnn", "0xf37a0519"},
                                        {"resnet18_small", "0x08a45a12"},
                                        {"bert_mini", "0x7baba2f9"},
                                        {"lstm_classifier", "0x0139e93b"},
                                        {"lenet", "0x659e59c7"}})
    EXPECT_EQ(fmt::format("{:#010x}", first_values(model)), expected) << model;
}

bool has_memory(const Variable& variable) {
  const Buffer& buffer = variable.state().buffer;
  return buffer && buffer.storage->is_allocated();
}

int64_t resident_bytes() {  // of this process
  int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(FirstValues, TakeNoMemoryBeforeTheyAreUsed) {
  const int64_t before = resident_bytes();
  Model model = make("bert_base");
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-4});
  int64_t bytes = 0;
  for (const auto& [name, variable] : model.state_dict()) {
    EXPECT_FALSE(has_memory(variable)) << name;
    EXPECT_FALSE(has_memory(variable.grad_variable())) << name;
    bytes += static_cast<int64_t>(variable.spec().bytes());
  }
  for (const auto& [name, variable] : optimizer.state()) EXPECT_FALSE(has_memory(variable)) << name;
  EXPECT_GT(bytes, 400'000'000);  // without gradients and states
  EXPECT_LT(resident_bytes() - before, 50'000'000);
}

}  // namespace
}  // namespace bonfire::models::first_values_test
