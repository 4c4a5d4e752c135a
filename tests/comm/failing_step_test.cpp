// A step that fails in one process ends those of the others, whatever they are connected by.
#include <gtest/gtest.h>

#include "bonfire/bonfire.h"
#include "bonfire/comm/lost_peer.h"
#include "tests/comm/ranks.h"

namespace bonfire::testing::failing_step_test {
namespace {

class FailingStep : public ::testing::TestWithParam<Backend> {
  void SetUp() override {
    if (!is_here(GetParam())) GTEST_SKIP() << "no " << name_of(GetParam()) << " here";
  }
};

void train(int64_t steps, int64_t bad_step) {
  nn::Linear model = fleet::distributed_model(nn::Linear({.in = 4, .out = 3}));
  auto optimizer = fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = 0.1}));
  for (int64_t step = 0; step < steps; ++step) {
    Tensor label = Tensor::from<int64_t>(std::vector<int64_t>{step == bad_step ? 9 : 1}, {1});
    Tensor loss = cross_entropy(model(ones({1, 4}, DType::f32)), label);
    loss.backward();
    optimizer.step();
    optimizer.clear_grad();
    loss.item();
  }
}

TEST_P(FailingStep, EndsThoseOfThePeersAtOnce) {
  auto endings = run_ranks(GetParam(), 3, [](Rank& rank) {
    fleet::join(rank.group);
    try {
      train(10, rank.rank() == 1 ? 5 : -1);
    } catch (const Error& error) {
      require(comm::is_lost_peer(error) == (rank.rank() != 1), "who is to blame is not seen");
      ++rank.counters[0];
      rank.wait_for(0, rank.size());  // nobody learns of it because a process has ended
      throw;
    }
  });
  EXPECT_NE(endings[1].find("threw: [cross_entropy"), std::string::npos) << endings[1];
  for (size_t r : {0, 2}) {
    EXPECT_NE(endings[r].find("aborted by rank 1 ("), std::string::npos) << endings[r];
    EXPECT_NE(endings[r].find("target 9 of row 0 is not a class"), std::string::npos) << endings[r];
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, FailingStep, ::testing::Values(Backend::shm, Backend::gloo, Backend::mpi),
                         [](const ::testing::TestParamInfo<Backend>& info) { return name_of(info.param); });

}  // namespace
}  // namespace bonfire::testing::failing_step_test
