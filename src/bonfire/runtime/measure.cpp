#include "bonfire/runtime/measure.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <limits>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "bonfire/base/random.h"
#include "bonfire/kernel/queue.h"
#include "bonfire/runtime/candidate_times.h"

namespace bonfire::runtime {

namespace {

// Floating numbers between -1 and 1, others for each stream, or zeros for other types. Equal operands would not do:
// rows of them have products so large that a softmax of those is made of denormal numbers, which take a hundred times
// as long.
void fill_random(const TensorSpec& spec, uint64_t stream, void* to, size_t bytes) {
  DeviceMemory& memory = memory_of(spec.device);
  if (!is_floating(spec.dtype)) return memory.fill_zero(to, bytes);
  constexpr size_t kPeriod = 16 * 1021;  // elements: long enough to look random, and soon made
  std::vector<std::byte> host(std::min(bytes, kPeriod * size_of(spec.dtype)));
  dispatch(spec.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* values = reinterpret_cast<T*>(host.data());
    for (size_t i = 0; i < host.size() / sizeof(T); ++i) values[i] = static_cast<T>(2 * uniform_at(7, stream, i) - 1);
  });
  for (size_t done = 0; done < bytes; done += host.size())
    memory.copy_from_host(static_cast<std::byte*>(to) + done, host.data(), std::min(host.size(), bytes - done));
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
    fill_random(spec, storages_.size(), list.back(), bytes);
  }

  std::vector<std::shared_ptr<Storage>> storages_;
  std::vector<void*> inputs_, outputs_;
  void* workspace_;
};

// Gives freed memory back to the system when it goes: a node's operands are large, and those of the next one seldom fit
// into the gaps that they leave.
class FreedMemory {
 public:
  FreedMemory() = default;
  FreedMemory(const FreedMemory&) = delete;
  FreedMemory& operator=(const FreedMemory&) = delete;
  ~FreedMemory() {
#ifdef __GLIBC__
    ::malloc_trim(0);
#endif
  }
};

// Nanoseconds of processor time of the calling thread.
double thread_nanoseconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e9 * static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec);
}

struct Timing {
  double nanoseconds;
  bool disturbed = false;  // others had the processor for a while
};

// A CPU's kernel is done when it returns; of others the queue knows. Where one thread does all the work its processor
// time counts, so that a busy machine does not disturb the choice.
Timing run_once(Queue& queue, Kernel& kernel, const Operands& operands) {
  using Clock = std::chrono::steady_clock;
  using Nanoseconds = std::chrono::duration<double, std::nano>;
  Timing inside{-1};
  auto start = Clock::now();
  queue.run_now([&](const Run& run) {
    if (run.threads == nullptr) return kernel.run(operands.on(run));
    auto begin = Clock::now();
    const double before = thread_nanoseconds();
    kernel.run(operands.on(run));
    const double own = thread_nanoseconds() - before, real = Nanoseconds(Clock::now() - begin).count();
    inside = run.threads->size() == 1 ? Timing{own} : Timing{real, own < 0.9 * real - 5e3};
  });
  return inside.nanoseconds >= 0 ? inside : Timing{Nanoseconds(Clock::now() - start).count()};
}

// Nanoseconds: the least of a few runs when they are disturbed.
double undisturbed(Queue& queue, Kernel& kernel, const Operands& operands) {
  constexpr int kMostTries = 5;
  constexpr double kEnough = 2e7;  // nanoseconds, of all tries
  double least = std::numeric_limits<double>::infinity(), spent = 0;
  for (int i = 0; i < kMostTries && spent < kEnough; ++i) {
    Timing once = run_once(queue, kernel, operands);
    least = std::min(least, once.nanoseconds);
    spent += once.nanoseconds;
    if (!once.disturbed) break;
  }
  return least;
}

Slowness& slowness() {
  static Slowness all;
  return all;
}

std::vector<std::string> algorithms_of(const std::vector<Candidate>& candidates) {
  std::vector<std::string> list;
  for (const Candidate& candidate : candidates)
    list.push_back(candidate.name.substr(0, candidate.name.rfind(':')));  // the whole of it where there is none
  return list;
}

}  // namespace

std::vector<double> measure(const GraphNode& node, const std::vector<Candidate>& candidates) {
  const FreedMemory freed;
  Operands operands(node, candidates);
  Queue& queue = queue_of(node.device());
  std::vector<std::unique_ptr<Kernel>> kernels(candidates.size());
  CandidateTimes times(algorithms_of(candidates), slowness());
  double spent = 0;
  // The first round runs all, the plainest last, and warms up; each further one those that are still near the best,
  // while there is something to decide. Long kernels get two rounds, short ones, whose times vary more, as many as a
  // few milliseconds allow.
  constexpr int kMostRounds = 40, kFewRounds = 4;
  constexpr double kLong = 4e7, kShort = 3e6;  // nanoseconds spent on the node
  for (size_t i = candidates.size(); i-- > 0;) {
    if (times.follows_another(i)) continue;
    kernels[i] = candidates[i].build();
    // A GPU loads a kernel when it first runs, which takes far longer than running it.
    if (node.device().type != DeviceType::cpu) run_once(queue, *kernels[i], operands);
    double once = undisturbed(queue, *kernels[i], operands);
    times.note(i, once);
    spent += once;
  }
  auto run_again = [&](size_t i) {
    if (kernels[i] == nullptr) return;
    double once = undisturbed(queue, *kernels[i], operands);
    times.note(i, once);
    spent += once;
  };
  // One run of some milliseconds does not tell (Slowness).
  constexpr double kVeryLong = 3e8;
  const bool repeated = node.device().type == DeviceType::cpu && spent > kShort && spent < kVeryLong;
  if (std::vector<size_t> leaders = times.leaders(); repeated && leaders.size() > 1)
    for (size_t i : leaders) run_again(i);
  constexpr double kAveraged = 1e8;  // a single run so long is an average by itself
  for (int round = 2; round <= kMostRounds && times.best() < kAveraged; ++round) {
    const double near = round == 2 && spent < kLong ? 1.5 : round <= 3 ? 1.25 : 1.15;
    if (spent > kShort && times.count_near(near) == 1) break;
    if ((round > 2 && spent > kLong) || (round > kFewRounds && spent > kShort)) break;
    for (size_t i = 0; i < kernels.size(); ++i)
      if (times.near(i, near)) run_again(i);
  }
  if (!repeated) return times.list();
  times.remember();
  return times.expected_times();
}

}  // namespace bonfire::runtime
