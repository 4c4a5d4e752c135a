#include <gtest/gtest.h>

#include <thread>

#include "bonfire/graph/variable.h"
#include "bonfire/ops/elementwise.h"

namespace bonfire::thread_end_test {
namespace {

TEST(Trace, AThreadMayEndWithWorkPending) {
  const float start[] = {1, 2, 3};
  Parameter w(Variable::from<float>(start, {3}));
  std::thread([&] {
    Tensor y = w.value();
    for (int i = 0; i < 50; ++i) y = y * w;  // nobody ever asks for it
  }).join();
  EXPECT_EQ(w.value().to_vector<float>(), (std::vector<float>{1, 2, 3}));
}

}  // namespace
}  // namespace bonfire::thread_end_test
