// Submissions of several threads and over several devices: who waits for whom, and who is told of a failure.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "bonfire/bonfire.h"
#include "bonfire/graph/op.h"
#include "bonfire/kernel/kernel.h"
#include "tests/support/expect_error.h"

namespace bonfire::submissions_test {
namespace {

const Device kFirst{DeviceType::cpu, 0}, kSecond{DeviceType::cpu, 1};

OutputSpecs same_spec(const InferContext& context) { return {context.input(0)}; }

// A kernel that waits until it is let through, and then copies its input or fails.
class Gate {
 public:
  void close() {
    std::lock_guard lock(mutex_);
    open_ = false;
    waiting_ = 0;
  }
  void open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
  }
  void await_arrival() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int waiting_ = 0;
};
Gate gate;

const Op& gated_op = register_op({.name = "gated_for_test", .infer = same_spec, .traits = Trait::stateful});
const Op& failing_op = register_op({.name = "failing_for_submissions", .infer = same_spec, .traits = Trait::stateful});
const bool gated_kernel = register_kernel("gated_for_test", DeviceType::cpu, [](const KernelRequest& request) {
  return one_candidate(request, [](const Run& run) {
    gate.pass();
    *run.output<float>() = *run.input<float>(0);
  });
});
const bool failing_kernel =
    register_kernel("failing_for_submissions", DeviceType::cpu, [](const KernelRequest& request) {
      return one_candidate(request, [](const Run&) { throw_error<DataError>("the kernel fails, as it was told"); });
    });

Tensor number(float value, Device device = kFirst) { return Tensor::from<float>({value}, {1}, device); }

TEST(SubmissionsOfThreads, SynchronizeWaitsForWhatAnotherThreadWaitsFor) {
  gate.close();
  Tensor result = trace_op(gated_op, {number(5)});
  commit();
  gate.await_arrival();
  std::atomic<bool> returned[2] = {false, false};
  std::thread first([&] {
    synchronize();
    returned[0] = true;
  });
  std::thread second([&] {
    synchronize();
    returned[1] = true;
  });
  // Neither can return before the gate opens; give a wrong one the time to.
  for (int i = 0; i < 200 && !returned[0] && !returned[1]; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_FALSE(returned[0]);
  EXPECT_FALSE(returned[1]);
  gate.open();
  first.join();
  second.join();
  EXPECT_EQ(result.item<float>(), 5);
}

TEST(SubmissionsOfThreads, AFailureIsToldToItsOwnThreadOnly) {
  std::mutex mutex;
  std::condition_variable changed;
  int stage = 0;  // 1: the submission that fails is under way; 2: the other thread has gone on
  auto reach = [&](int next) {
    std::lock_guard lock(mutex);
    stage = next;
    changed.notify_all();
  };
  auto await = [&](int wanted) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return stage >= wanted; });
  };
  std::string told;
  std::thread guilty([&] {
    Variable sum_of(TensorSpec{{1}, DType::f32, kSecond});
    sum_of.assign(trace_op(failing_op, {number(1, kSecond)}));
    commit();
    reach(1);
    await(2);
    try {
      (number(1, kSecond) + 1.0).item<float>();
      commit();
    } catch (const std::exception& error) {
      told = error.what();
    }
    EXPECT_ERROR(sum_of.value(), GraphError, "load it again");
  });
  await(1);
  for (int step = 0; step < 20; ++step) {
    EXPECT_EQ((number(1) + 1.0).item<float>(), 2);
    synchronize();
  }
  reach(2);
  guilty.join();
  EXPECT_NE(told.find("as it was told"), std::string::npos) << told;
}

TEST(SubmissionsOfThreads, AFailureOfAThreadThatHasEndedIsNobodysElse) {
  std::thread([] {
    Tensor lost = trace_op(failing_op, {number(1, kSecond)});
    commit();
  }).join();
  synchronize();
  EXPECT_EQ((number(1) + 1.0).item<float>(), 2);
  EXPECT_EQ((number(1, kSecond) + 1.0).item<float>(), 2);
}

// The submission has a program on each device. A reader on the second must wait for the first, too.
TEST(SubmissionsOverDevices, AConsumerOnTheLastDeviceWaitsForAllPrograms) {
  for (bool gate_first : {true, false}) {
    gate.close();
    Tensor a = number(5, kFirst), b = number(6, kSecond);
    Tensor x = gate_first ? trace_op(gated_op, {a}) : a + 0.0;
    Tensor y = gate_first ? b + 0.0 : trace_op(gated_op, {b});
    commit();
    Tensor on_second = x.to(kSecond) + y, on_first = x + y.to(kFirst);
    commit();
    std::thread opens([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // time for a reader that does not wait
      gate.open();
    });
    EXPECT_EQ(on_second.item<float>(), 11) << gate_first;
    EXPECT_EQ(on_first.item<float>(), 11) << gate_first;
    opens.join();
  }
}

// Waiting for a submission one part of which has failed also waits for the others, whose memory is in use until then.
TEST(SubmissionsOverDevices, WaitingGoesOnAfterAFailingPart) {
  gate.close();
  Tensor failing = trace_op(failing_op, {number(1, kFirst)}), slow = trace_op(gated_op, {number(2, kSecond)});
  commit();
  gate.await_arrival();
  std::atomic<bool> returned = false;
  std::thread reader([&] {
    EXPECT_ERROR(failing.item<float>(), Error, "as it was told");
    returned = true;
  });
  for (int i = 0; i < 100 && !returned; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_FALSE(returned);
  gate.open();
  reader.join();
  synchronize();
}

TEST(HistoriesOfThreads, BackwardThroughWhatAnotherThreadHasTraced) {
  // Each thread has traced another number of ops when it adds to the history: order must not depend on that.
  for (int ops_before : {0, 1000}) {
    Parameter w(Variable::from<float>(std::vector<float>{3}, {1}));
    Tensor middle;
    auto idle = [](int count) {
      Tensor x = number(1);
      for (int i = 0; i < count; ++i) x = x + 1.0;
      x.item<float>();
    };
    std::thread([&] {
      idle(ops_before);
      middle = square(square(w.value()));
      middle.item<float>();
    }).join();
    std::thread([&] {
      idle(1000 - ops_before);
      Tensor loss = sum(square(middle));  // w to the eighth
      loss.backward();
      commit();
    }).join();
    ASSERT_TRUE(w.grad().defined()) << ops_before;
    EXPECT_EQ(w.grad().item<float>(), 8 * 2187) << ops_before;
  }
}

TEST(PlanKeys, OutputsBeyondThe256thAreTold) {
  std::vector<float> values(300);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  Tensor x = Tensor::from<float>(values, {300});
  // The split is the second node of its step: an odd position.
  auto part = [&](size_t i) { return split(x * 1.0, 1, 0)[i] + 0.5; };
  EXPECT_EQ(part(0).item<float>(), 0.5);
  EXPECT_EQ(part(256).item<float>(), 256.5);
  // The same two as outputs that somebody holds.
  auto held = [&](size_t i) { return split(x * 1.0, 1, 0)[i]; };
  EXPECT_EQ(held(0).item<float>(), 0);
  EXPECT_EQ(held(256).item<float>(), 256);
}

TEST(PlanKeys, ListsMayBeLong) {
  const int64_t parts = 70'000;
  std::vector<int64_t> sizes(static_cast<size_t>(parts), 1);
  Attributes attributes{{"sizes", std::span<const int64_t>(sizes)}, {"axis", 7}};
  EXPECT_EQ(attributes.list("sizes").size(), sizes.size());
  EXPECT_EQ(attributes.integer("axis"), 7);
  attributes.set({"sizes", std::span<const int64_t>(sizes).first(66'000)});
  EXPECT_EQ(attributes.list("sizes").size(), 66'000U);
  EXPECT_EQ(attributes.integer("axis"), 7);
}

}  // namespace
}  // namespace bonfire::submissions_test
