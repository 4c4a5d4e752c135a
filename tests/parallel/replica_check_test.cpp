#include "bonfire/parallel/replica_check.h"

#include <gtest/gtest.h>

#include <thread>

#include "bonfire/base/error.h"
#include "bonfire/comm/local/local_group.h"
#include "bonfire/graph/engine.h"
#include "bonfire/nn/linear.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/optim/optimizers.h"
#include "bonfire/parallel/fleet.h"
#include "tests/parallel/on_mesh.h"
#include "tests/support/expect_error.h"

namespace bonfire::fleet::replica_check_test {
namespace {

using bonfire::testing::expect_mentions;

// Ranks as threads, each with a device and a model of its own, trained for a step; then what the body does.
struct Rank {
  int rank;
  nn::Linear& model;
  optim::Momentum& optimizer;
  ReplicaCheck& replicas;
};
std::vector<std::string> errors_of(int ranks, const std::function<void(const Rank&)>& body) {
  auto groups = comm::local_groups(ranks, {.timeout = std::chrono::seconds(60)});
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        join(groups[static_cast<size_t>(rank)]);
        manual_seed(static_cast<uint64_t>(rank));
        nn::Linear model({.in = 5, .out = 3});
        model.to(Device{DeviceType::cpu, static_cast<uint8_t>(rank)});
        model = distributed_model(model);
        optim::Momentum optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9});
        optimizer = distributed_optimizer(optimizer);
        ReplicaCheck replicas(replicated(model, optimizer));
        Tensor x = Tensor::from<float>(std::vector<float>(10, static_cast<float>(rank)), {2, 5},
                                       Device{DeviceType::cpu, static_cast<uint8_t>(rank)});
        sum(model(x)).backward();
        optimizer.step();
        optimizer.clear_grad();
        body({rank, model, optimizer, replicas});
      } catch (const CommError& error) {
        errors[static_cast<size_t>(rank)] = std::string("CommError ") + error.what();
      } catch (const Error& error) {
        errors[static_cast<size_t>(rank)] = std::string("Error ") + error.what();
      }
      try {
        leave();
      } catch (const Error&) {  // a rank has failed, and was named before
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

void flip_a_bit(const Variable& variable) {
  std::vector<std::byte> bytes = variable.save();
  bytes[bytes.size() / 2] ^= std::byte{1};
  variable.load(bytes);
}

Variable state_called(const optim::Optimizer& optimizer, const std::string& name) {
  for (const auto& [found, variable] : optimizer.state())
    if (found == name) return variable;
  throw std::runtime_error("there is no " + name);
}

TEST(ReplicaCheck, ReplicasAgreeAndTheCheckIsNoStep) {
  for (const std::string& error : errors_of(3, [](const Rank& self) {
         const uint64_t step = StepContext::current().random.step;
         self.replicas.compare(1);
         self.replicas.start();
         EXPECT_TRUE(self.replicas.started());
         self.replicas.finish(1);
         EXPECT_FALSE(self.replicas.started());
         EXPECT_EQ(StepContext::current().random.step, step);
       }))
    EXPECT_EQ(error, "");
}

TEST(ReplicaCheck, AFlippedBitIsNamedWithItsRank) {
  std::vector<std::string> errors = errors_of(3, [](const Rank& self) {
    if (self.rank == 1) flip_a_bit(self.model.parameters()[1]);
    self.replicas.compare(7);
  });
  for (const std::string& error : errors)
    expect_mentions(error, {"[replicas] after step 7 rank 1 differs from ranks 0, 2 in bias"});
  EXPECT_TRUE(errors[1].starts_with("Error ")) << errors[1];  // it is the one to blame
  for (size_t other : {0U, 2U}) EXPECT_TRUE(errors[other].starts_with("CommError ")) << errors[other];
}

TEST(ReplicaCheck, TheOptimizersStateIsComparedToo) {
  for (const std::string& error : errors_of(2, [](const Rank& self) {
         if (self.rank == 0) flip_a_bit(state_called(self.optimizer, "weight.momentum_buffer"));
         self.replicas.compare(7);
       })) {
    expect_mentions(error, {"rank 1 and rank 0 differ in optimizer's weight.momentum_buffer"});
    EXPECT_TRUE(error.starts_with("Error ")) << error;  // of two nobody knows which
  }
}

// The values are those of the moment when the hash was started, whatever steps follow.
TEST(ReplicaCheck, IsOfTheMomentWhenItWasStarted) {
  for (const std::string& error : errors_of(2, [](const Rank& self) {
         self.replicas.start();
         if (self.rank == 0) flip_a_bit(self.model.parameters()[0]);
         self.replicas.finish(1);
       }))
    EXPECT_EQ(error, "");
}

TEST(ReplicaCheck, OnlyRanksOfOneKindAreCompared) {
  const std::string names[] = {"a", "b"};
  const int64_t kinds[] = {1, 2, 1, 2};
  const std::vector<int64_t> one{10, 20}, other{11, 20}, late{10, 21};
  const int numbers[] = {0, 1, 2, 3};
  EXPECT_EQ(difference_between(names, kinds, std::vector{one, other, one, other}, numbers), "");
  EXPECT_EQ(difference_between(names, kinds, std::vector{one, other, late, other}, numbers),
            "rank 2 and rank 0 differ in b");
}

// Ranks that hold the same part of a layer are compared, and named by their numbers in the job.
TEST(ReplicaCheck, PartsOfLayersAreComparedBetweenThoseThatHoldTheSame) {
  for (const char* name : {"weight", "optimizer's weight.momentum_buffer"}) {
    const std::vector<std::string> errors = testing::errors_on_mesh(4, {.data = 2, .tensor = 2}, [&](Device device) {
      nn::Linear model({.in = 4, .out = 6});
      model.to(device);
      model = distributed_model(model, {.split = {{"weight", 0}, {"bias", 0}}});
      optim::Momentum optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9});
      optimizer = distributed_optimizer(optimizer);
      ReplicaCheck replicas(replicated(model, optimizer));
      sum(model(ones({2, 4}, DType::f32, device))).backward();
      optimizer.step();
      optimizer.clear_grad();
      replicas.compare(1);
      if (rank() != 3) return replicas.compare(2);
      for (const nn::NamedVariable& one : replicated(model, optimizer)) {
        if (one.name != name) continue;
        std::vector<std::byte> bytes = one.variable.save_stored();
        bytes[bytes.size() / 2] ^= std::byte{1};
        one.variable.load_stored(bytes);
      }
      replicas.compare(2);
    });
    for (size_t one : {1U, 3U}) {
      expect_mentions(errors[one], {"after step 2 rank ", fmt::format(" differ in {}.", name)});
      const bool names_both = errors[one].find("rank 1 and rank 3") != std::string::npos ||
                              errors[one].find("rank 3 and rank 1") != std::string::npos;
      EXPECT_TRUE(names_both) << errors[one];
    }
    // Those that hold the other part hear of it when the others have gone.
    for (size_t one : {0U, 2U}) EXPECT_EQ(errors[one].find("differ in"), std::string::npos) << errors[one];
  }
}

}  // namespace
}  // namespace bonfire::fleet::replica_check_test
