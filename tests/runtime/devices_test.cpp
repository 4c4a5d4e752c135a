// Several CPU devices stand in for several accelerators.

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "bonfire/backend/cpu/device/threads.h"
#include "bonfire/base/error.h"
#include "bonfire/base/random.h"
#include "bonfire/comm/collective_op.h"
#include "bonfire/graph/engine.h"
#include "bonfire/kernel/kernel.h"
#include "bonfire/kernel/queue.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/matmul.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/runtime/compile.h"
#include "tests/support/expect_error.h"

namespace bonfire::devices_test {
namespace {

const Device kFirst{DeviceType::cpu, 0}, kSecond{DeviceType::cpu, 1};

OutputSpecs same_spec(const InferContext& context) { return {context.input(0)}; }

TEST(DeviceQueues, AGraphWhoseHalvesLiveOnTwoDevicesRunsRight) {
  Tensor x = Tensor::from<float>({1, 2, 3}, {3}, kFirst);
  Tensor y = (x * 2.0).to(kSecond) + 1.0;
  Tensor z = (y * y).to(kFirst) + x;
  EXPECT_EQ(y.device(), kSecond);
  EXPECT_EQ(z.to_vector<float>(), (std::vector<float>{10, 27, 52}));
}

TEST(DeviceQueues, GradientsCrossBack) {
  const float start[] = {1, 2};
  Parameter a(Variable::from<float>(start, {2}, kFirst)), b(Variable::from<float>(start, {2}, kSecond));
  for (int step = 0; step < 3; ++step) {
    Tensor loss = sum(square(a.value()).to(kSecond) * b.value());
    loss.backward();
    EXPECT_EQ(a.grad().device(), kFirst);
    EXPECT_EQ(a.grad().to_vector<float>(), (std::vector<float>{2, 8}));
    EXPECT_EQ(b.grad().to_vector<float>(), (std::vector<float>{1, 4}));
    a.clear_grad();
    b.clear_grad();
  }
}

TEST(DeviceQueues, MixingDevicesInOneOpIsAnErrorThatSaysWhatToDo) {
  Tensor x = Tensor::from<float>({1}, {1}, kFirst), y = Tensor::from<float>({1}, {1}, kSecond);
  EXPECT_ERROR(x + y, ShapeError, "to(device)");
}

// Two kernels that each wait until the other has started: only if they overlap can they finish.
struct Meeting {
  std::mutex mutex;
  std::condition_variable changed;
  int arrived = 0;
};
Meeting meeting;

std::vector<Candidate> meet_candidates(const KernelRequest& request) {
  return one_candidate(request, [](const Run& run) {
    std::unique_lock lock(meeting.mutex);
    ++meeting.arrived;
    meeting.changed.notify_all();
    if (!meeting.changed.wait_for(lock, std::chrono::seconds(20), [] { return meeting.arrived >= 2; }))
      throw_error<TimeoutError>("the other one never ran");
    *run.output<float>() = *run.input<float>(0);
  });
}

const Op& meet_op = register_op({.name = "meet_for_test", .infer = same_spec});
const Op& collective_op =
    comm::register_collective({.name = "collective_for_test", .infer = same_spec}, comm::kComparedByTag);
const bool meet_kernel = register_kernel("meet_for_test", DeviceType::cpu, meet_candidates);
// What a kernel that waits for other ranks says of itself.
std::vector<Candidate> in_a_line(std::vector<Candidate> candidates) {
  candidates[0].line = Line{.axis = Axis::data, .kind = Line::Kind::collective, .number = 0};
  return candidates;
}
const bool collective_kernel =
    register_kernel("collective_for_test", DeviceType::cpu,
                    [](const KernelRequest& request) { return in_a_line(meet_candidates(request)); });

TEST(DeviceQueues, HalvesOnTwoDevicesOverlap) {
  Tensor x = Tensor::from<float>({5}, {1}, kFirst), y = Tensor::from<float>({6}, {1}, kSecond);
  Tensor a = trace_op(meet_op, {x}), b = trace_op(meet_op, {y});
  EXPECT_EQ((a + b.to(kFirst)).item<float>(), 11);
}

// `index` must not have been used before.
Device device_with(int ops, int16_t index) {
  const Device device{DeviceType::cpu, index};
  cpu::set_ops_in_flight(ops);
  queue_of(device);
  cpu::set_ops_in_flight(0);
  return device;
}

TEST(OpsInFlight, IndependentOpsOfOneDeviceRunTogether) {
  if (cpu::cpu_threads() < 2) GTEST_SKIP() << "needs two cores";
  const Device device = device_with(2, 5);
  meeting.arrived = 0;
  Tensor x = Tensor::from<float>({5}, {1}, device), y = Tensor::from<float>({6}, {1}, device);
  Tensor a = trace_op(meet_op, {x}), b = trace_op(meet_op, {y});
  EXPECT_EQ((a + b).item<float>(), 11);
}

TEST(OpsInFlight, ThreadsAreSetBeforeTheFirstUse) {
  queue_of(kFirst);
  EXPECT_ERROR(cpu::set_cpu_threads(cpu::cpu_threads() + 1), ConfigError, "set them before a CPU device is used");
}

TEST(OpsInFlight, GradientsAreTheSameBits) {
  auto gradients = [](Device device) {
    std::vector<float> numbers(64 * 64);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = normal_at(3, 3, i);
    Parameter first(Variable::from<float>(numbers, {64, 64}, device));
    Parameter second(Variable::from<float>(numbers, {64, 64}, device));
    Tensor x = Tensor::from<float>(numbers, {64, 64}, device);
    for (int step = 0; step < 3; ++step) sum(square(matmul(relu(matmul(x, first.value())), second.value()))).backward();
    std::vector<float> all = first.grad().to_vector<float>(), more = second.grad().to_vector<float>();
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  EXPECT_EQ(gradients(device_with(3, 6)), gradients(device_with(1, 7)));
}

TEST(CollectiveSteps, RunBesideTheStepsAfterThemThatDoNotReadTheirResults) {
  meeting.arrived = 0;
  Tensor x = Tensor::from<float>({5}, {1}, kFirst);
  Tensor reduced = trace_op(collective_op, {x});
  Tensor beside = trace_op(meet_op, {x});
  EXPECT_EQ((reduced + beside).item<float>(), 10);
}

// Otherwise the step beside it would wait until it may write there.
TEST(CollectiveSteps, KeepWhatTheyReadWhileTheyRun) {
  meeting.arrived = 0;
  Tensor x = Tensor::from<float>({5}, {1}, kFirst);
  Tensor reduced = trace_op(collective_op, {x + 1.0});
  Tensor beside = trace_op(meet_op, {x});
  EXPECT_EQ((reduced + beside).item<float>(), 11);
}

const Op& fail_op = register_op({.name = "fail_for_test", .infer = same_spec});
const bool fail_kernel = register_kernel("fail_for_test", DeviceType::cpu, [](const KernelRequest& request) {
  return one_candidate(request, [](const Run&) { throw_error<DataError>("the disk is on fire"); });
});

const Op& failing_collective_op =
    comm::register_collective({.name = "failing_collective_for_test", .infer = same_spec}, comm::kComparedByTag);
const bool failing_collective_kernel =
    register_kernel("failing_collective_for_test", DeviceType::cpu, [](const KernelRequest& request) {
      return in_a_line(one_candidate(request, [](const Run&) { throw_error<CommError>("rank 1 is gone"); }));
    });

TEST(CollectiveSteps, AFailureIsNamedAndTheNextStepsRunAgain) {
  Tensor x = Tensor::from<float>({5}, {1}, kFirst);
  Tensor lost = trace_op(failing_collective_op, {x});
  Tensor beside = x + 1.0;
  EXPECT_ERROR((lost + beside).item<float>(), DeviceError,
               "[failing_collective_for_test] failed on cpu:0: rank 1 is gone");
  EXPECT_EQ((x + 2.0).item<float>(), 7);
}

TEST(ExecutorErrors, AFailureAtRunTimeNamesOpAndModuleAndMarksWhatItTouched) {
  const float start[] = {1};
  Variable w = Variable::from<float>(start, {1});
  w.state().name = "w";
  {
    PathScope path("layer3");
    w.assign(trace_op(fail_op, {w.value()}));
  }
  commit();
  engine().synchronize();
  EXPECT_ERROR(w.value(), GraphError, "[fail_for_test] in module layer3");
  EXPECT_ERROR(w.value(), GraphError, "the disk is on fire");
  w.load(std::as_bytes(std::span<const float>(start)));
  EXPECT_EQ(w.value().item<float>(), 1);
}

TEST(ExecutorErrors, AFailureSurfacesWhenTheValueIsRead) {
  Tensor x = Tensor::from<float>({1}, {1});
  Tensor y = trace_op(fail_op, {x});
  EXPECT_ERROR(y.item<float>(), DataError, "[fail_for_test] failed on cpu:0");  // the kernel's kind of error
  EXPECT_EQ((x + 1.0).item<float>(), 2);
}

TEST(ExecutorErrors, AnOpWithoutAKernelIsNamed) {
  static const Op& nowhere = register_op({.name = "nowhere_for_test", .infer = same_spec});
  Tensor x = Tensor::from<float>({1}, {1});
  Tensor y = trace_op(nowhere, {x});
  EXPECT_ERROR(commit(), DeviceError, "[nowhere_for_test] there is no kernel on cpu:0");
}

TEST(ExecutorThreads, ThreadsTraceAndRunAtTheSameTime) {
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t, &right] {
      Device device{DeviceType::cpu, static_cast<int16_t>(t % 2)};
      const float start[] = {static_cast<float>(t + 1)};
      Parameter w(Variable::from<float>(start, {1}, device));
      for (int i = 0; i < 20; ++i) {
        Tensor loss = sum(square(w.value()));
        loss.backward();
        w.assign(w.value() - w.grad() * 0.25);
        commit();
        w.clear_grad();
      }
      float expected = static_cast<float>(t + 1);
      for (int i = 0; i < 20; ++i) expected -= 0.25F * (2 * expected);
      right += std::abs(w.value().item<float>() - expected) < 1e-6F ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 4);
}

TEST(ExecutorThreads, CompiledStepsShareAPlanAcrossThreads) {
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&right] {
      const float start[] = {0};
      Variable w = Variable::from<float>(start, {1});
      auto step = compile([&](const Tensor& x) {
        w.assign(w.value() + x);
        return w.value();
      });
      Tensor one = Tensor::from<float>({1}, {1});
      for (int i = 0; i < 50; ++i) step(one);
      right += w.value().item<float>() == 50 ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 4);
}

}  // namespace
}  // namespace bonfire::devices_test
