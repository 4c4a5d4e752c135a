// Messages between ranks: they wait for none but those before them on their way, and nothing waits for them longer than
// it must.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <thread>

#include "bonfire/base/error.h"
#include "bonfire/bonfire.h"
#include "bonfire/comm/collectives.h"
#include "tests/comm/collective_reference.h"
#include "tests/comm/ranks.h"

namespace bonfire::testing::messages_test {
namespace {

constexpr Axis kAxis = Axis::pipeline;
const Shape kLarge{300'000};  // more than lies on its way anywhere

class Messages : public ::testing::TestWithParam<Backend> {
  void SetUp() override {
    if (!is_here(GetParam())) GTEST_SKIP() << "no " << name_of(GetParam()) << " here";
  }
};

Device device_of(const Rank& rank, Backend backend) {
  return {DeviceType::cpu, static_cast<int16_t>(are_threads(backend) ? rank.rank() : 0)};
}

void as_pipeline(Backend backend, int size, const std::function<void(Rank& rank, Device device)>& body) {
  expect_all_fine(run_ranks(backend, size, [&](Rank& rank) {
    fleet::join(rank.group, {.pipeline = rank.size()});
    body(rank, device_of(rank, backend));
    fleet::leave();
  }));
}

void require_numbers(const Tensor& tensor, double expected, const char* what) {
  for (double value : tensor.to_vector<double>())
    if (value != expected) require(false, fmt::format("{}: {} instead of {}", what, value, expected));
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_P(Messages, AReceiveMayBePostedLongBeforeItsSend) {
  as_pipeline(GetParam(), 2, [](Rank& rank, Device device) {
    const Tensor x = full(kLarge, 1 + rank.rank(), DType::f32, device);
    if (rank.rank() == 1) {
      const Tensor late = comm::receive({kLarge, DType::f32, device}, kAxis, 0);
      const Tensor total = comm::all_reduce(x, kAxis);  // in the same program, traced after it
      const Tensor answer = comm::send(x, kAxis, 0);
      commit();
      require_numbers(late, 5, "what came late");
      require_numbers(total, 3, "what was reduced meanwhile");
    } else {
      // The peer has posted its receive before it takes part in these.
      require_numbers(comm::all_reduce(x, kAxis), 3, "what was reduced meanwhile");
      require_numbers(comm::receive({kLarge, DType::f32, device}, kAxis, 1), 2, "what came the other way");
      comm::send(full(kLarge, 5, DType::f32, device), kAxis, 1);
      commit();
    }
  });
}

TEST_P(Messages, BothDirectionsAtOnceDoNotWaitForEachOther) {
  as_pipeline(GetParam(), 3, [](Rank& rank, Device device) {
    for (int round = 0; round < 20; ++round) {
      std::vector<Tensor> received;
      for (int peer = 0; peer < rank.size(); ++peer)
        if (peer != rank.rank())  // each uses what it receives before it traces what it sends
          received.push_back(comm::receive({kLarge, DType::f32, device}, kAxis, peer) + 1.0);
      for (int peer = 0; peer < rank.size(); ++peer)
        if (peer != rank.rank())
          comm::send(full(kLarge, 100 * round + 10 * rank.rank() + peer, DType::f32, device), kAxis, peer);
      size_t next = 0;
      for (int peer = 0; peer < rank.size(); ++peer)
        if (peer != rank.rank())
          require_numbers(received[next++], 100 * round + 10 * peer + rank.rank() + 1, "a message");
    }
  });
}

TEST_P(Messages, ASendOutlivesItsProgramAndKeepsWhatItSends) {
  as_pipeline(GetParam(), 2, [](Rank& rank, Device device) {
    constexpr int kMessages = 5;
    if (rank.rank() == 0) {
      for (int i = 0; i < kMessages; ++i) {
        const Tensor x = full(kLarge, i, DType::f32, device) * 2.0;
        const Tensor sent = comm::send(x, kAxis, 1, i);
        require(sum(x).item() + sent.item() == 2.0 * i * static_cast<double>(kLarge.count()),
                "the program's own result");
      }
      ++rank.counters[0];  // all of these have ended, and nothing is received yet
    } else {
      rank.wait_for(0, 1);
      for (int i = 0; i < kMessages; ++i)
        require_numbers(comm::receive({kLarge, DType::f32, device}, kAxis, 0, {.tag = i}), 2 * i, "a late message");
    }
  });
}

TEST_P(Messages, WhatFailsLateFailsTheNextSubmission) {
  expect_all_fine(run_ranks(GetParam(), 2, [](Rank& rank) {
    fleet::join(rank.group, {.pipeline = 2});
    const Device device = device_of(rank, GetParam());
    if (rank.rank() == 0) {
      const Tensor x = full(kLarge, 1, DType::f32, device);
      comm::send(x, kAxis, 1);
      require(sum(x).item() == static_cast<double>(kLarge.count()), "the program itself is fine");
      ++rank.counters[0];
      std::string error = "no error";
      while (error == "no error") error = error_of([&] { (x + 1.0).to_vector<float>(); });  // until it has failed
      require(error.find("[send] failed on cpu") != std::string::npos &&
                  error.find("after its program") != std::string::npos && error.find("no more") != std::string::npos,
              error);
      ++rank.counters[1];
    } else {
      rank.wait_for(0, 1);
      StepContext::current().tell_failure("no more");
      rank.wait_for(1, 1);
    }
  }));
}

TEST_P(Messages, LeavingTheJobDoesNotWaitForWhatNobodyReceives) {
  const auto endings = run_ranks(GetParam(), 2, [](Rank& rank) {
    fleet::join(rank.group, {.pipeline = 2});
    if (rank.rank() == 0) {
      comm::send(full(kLarge, 1, DType::f32, device_of(rank, GetParam())), kAxis, 1);
      commit();
    }
    fleet::leave();
  });
  EXPECT_EQ(endings[1], "");
  EXPECT_EQ(endings[0], "threw: [fleet] the job was left with 1 messages of this rank that nobody had received");
}

// What each kind of difference is called, by the rank that receives.
TEST_P(Messages, ADifferenceIsNamedForBothSides) {
  struct Difference {
    const char* name;
    TensorSpec sent, expected;
    int64_t tag;
    const char* message;
  };
  auto spec = [](const Shape& shape, DType dtype = DType::f32) { return TensorSpec{shape, dtype, {}}; };
  const Difference differences[] = {
      {"shape", spec({2, 3}), spec({3, 2}), 0,
       "rank 0 along pipeline has sent f32 [2, 3] with tag 0, and rank 1 expects f32 [3, 2] with tag 0 from it"},
      {"dtype", spec({4}, DType::f32), spec({4}, DType::i32), 0,
       "rank 0 along pipeline has sent f32 [4] with tag 0, and rank 1 expects i32 [4] with tag 0 from it"},
      {"size", spec({100'000}), spec({1}), 0,
       "rank 0 along pipeline has sent f32 [100000] with tag 0, and rank 1 expects f32 [1] with tag 0 from it"},
      {"tag", spec({4}), spec({4}), 7,
       "rank 0 along pipeline has sent f32 [4] with tag 0, and rank 1 expects f32 [4] with tag 7 from it"}};
  if (!are_threads(GetParam())) GTEST_SKIP() << "the same code, whatever carries the bytes";
  for (const Difference& one : differences) {
    const auto endings = run_ranks(GetParam(), 2, [&](Rank& rank) {
      fleet::join(rank.group, {.pipeline = 2});
      const Device device = device_of(rank, GetParam());
      if (rank.rank() == 0) {
        comm::send(zeros(one.sent.shape, one.sent.dtype, device), kAxis, 1);
        commit();
        rank.wait_for(0, 1);
        return;
      }
      TensorSpec expected = one.expected;
      expected.device = device;
      const std::string error =
          error_of([&] { comm::receive(expected, kAxis, 0, {.tag = one.tag}).to_vector<double>(); });
      ++rank.counters[0];
      require(error.find(one.message) != std::string::npos, error);
    });
    EXPECT_EQ(endings[1], "") << one.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Messages,
                         ::testing::Values(Backend::local, Backend::shm, Backend::gloo, Backend::mpi),
                         [](const ::testing::TestParamInfo<Backend>& info) { return name_of(info.param); });

}  // namespace
}  // namespace bonfire::testing::messages_test
