#include "bonfire/runtime/measure.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>

#include "bonfire/base/random.h"
#include "bonfire/kernel/queue.h"

namespace bonfire::runtime {

namespace {

// `bytes` of floating numbers between -1 and 1, or zeros for other types.
std::vector<std::byte> random_bytes(DType dtype, size_t bytes) {
  constexpr size_t kPeriod = 8191;  // elements: long enough to look random, and soon made
  std::vector<std::byte> host(bytes);
  if (!is_floating(dtype)) return host;
  size_t period = std::min(bytes, kPeriod * size_of(dtype));
  dispatch(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* values = reinterpret_cast<T*>(host.data());
    for (size_t i = 0; i < period / sizeof(T); ++i) values[i] = static_cast<T>(2 * uniform_at(7, 7, i) - 1);
  });
  for (size_t done = period; done < bytes; done += period)
    std::memcpy(host.data() + done, host.data(), std::min(period, bytes - done));
  return host;
}

// The operands of a node, large enough for every candidate.
class Operands {
 public:
  Operands(const GraphNode& node, const std::vector<Candidate>& candidates) {
    for (size_t i = 0; i < node.inputs.size(); ++i)
      add(
          node.inputs[i].spec(), inputs_, [&](const Candidate& c) { return c.input_layouts[i]; }, candidates);
    for (size_t i = 0; i < node.outputs.size(); ++i)
      add(
          node.outputs[i], outputs_, [&](const Candidate& c) { return c.output_layouts[i]; }, candidates);
    size_t bytes = 1;
    for (const Candidate& candidate : candidates) bytes = std::max(bytes, candidate.workspace_bytes);
    storages_.push_back(std::make_shared<Storage>(node.device(), bytes));
    workspace_ = storages_.back()->data();
    memory_of(node.device()).fill_zero(workspace_, bytes);  // the pages are there before the first run
  }

  Run on(const Run& device) const { return {inputs_, outputs_, workspace_, device.threads, device.stream}; }

 private:
  template <class LayoutOf>
  void add(const TensorSpec& spec, std::vector<void*>& list, const LayoutOf& layout_of,
           const std::vector<Candidate>& candidates) {
    size_t bytes = 1;
    for (const Candidate& candidate : candidates)
      bytes = std::max(bytes, bytes_of(spec.shape, spec.dtype, layout_of(candidate)));
    storages_.push_back(std::make_shared<Storage>(spec.device, bytes));
    list.push_back(storages_.back()->data());
    std::vector<std::byte> host = random_bytes(spec.dtype, bytes);
    memory_of(spec.device).copy_from_host(list.back(), host.data(), bytes);
  }

  std::vector<std::shared_ptr<Storage>> storages_;
  std::vector<void*> inputs_, outputs_;
  void* workspace_;
};

// Nanoseconds. A CPU's kernel is done when it returns; of others the queue knows.
double run_once(Queue& queue, Kernel& kernel, const Operands& operands) {
  using Clock = std::chrono::steady_clock;
  std::chrono::duration<double, std::nano> inside{0};
  bool synchronous = false;
  auto start = Clock::now();
  queue.run_now([&](const Run& run) {
    auto begin = Clock::now();
    kernel.run(operands.on(run));
    inside = Clock::now() - begin;
    synchronous = run.threads != nullptr;
  });
  std::chrono::duration<double, std::nano> outside = Clock::now() - start;
  return synchronous ? inside.count() : outside.count();
}

}  // namespace

std::vector<double> measure(const GraphNode& node, const std::vector<Candidate>& candidates) {
  Operands operands(node, candidates);
  Queue& queue = queue_of(node.device());
  std::vector<std::unique_ptr<Kernel>> kernels;
  for (const Candidate& candidate : candidates) kernels.push_back(candidate.build());
  std::vector<double> times(candidates.size(), std::numeric_limits<double>::infinity());
  double best = std::numeric_limits<double>::infinity(), spent = 0;
  // Each round runs those that are still near the best; the first one also warms up. Long kernels get two rounds, short
  // ones, whose times vary more, as many as a few milliseconds allow.
  constexpr int kMostRounds = 40, kFewRounds = 5;
  constexpr double kLong = 1e8, kShort = 3e6;  // nanoseconds spent on the node
  for (int round = 1; round <= kMostRounds; ++round) {
    if ((round > 2 && spent > kLong) || (round > kFewRounds && spent > kShort)) break;
    double near = round == 1 ? 1e9 : round == 2 ? 1.6 : round == 3 ? 1.25 : 1.15;
    for (size_t i = 0; i < kernels.size(); ++i) {
      if (round > 1 && times[i] > near * best) continue;
      double once = run_once(queue, *kernels[i], operands);
      times[i] = std::min(times[i], once);
      best = std::min(best, once);
      spent += once;
    }
  }
  return times;
}

}  // namespace bonfire::runtime
