#include "bonfire/ops/bit_hash.h"

#include <atomic>
#include <cstring>

#include "bonfire/kernel/kernel.h"

namespace bonfire::cpu {

namespace {

// Of the words begin … end − 1, all of them whole.
BitHash hash_words(const std::byte* bytes, int64_t begin, int64_t end) {
  BitHash hash;
  for (int64_t i = begin; i < end; ++i) {
    uint32_t word;
    std::memcpy(&word, bytes + 4 * i, sizeof word);
    hash.add(word, static_cast<uint32_t>(i));
  }
  return hash;
}

int64_t hash_bytes(const std::byte* bytes, size_t count, ThreadPool& threads) {
  constexpr int64_t kGrain = 1 << 16;  // words
  const auto words = static_cast<int64_t>(count / 4);
  std::atomic<uint32_t> low{0}, high{0};
  auto add = [&](const BitHash& part) {
    low += part.low;
    high += part.high;
  };
  threads.parallel_for(words, kGrain, [&](int64_t begin, int64_t end) { add(hash_words(bytes, begin, end)); });
  if (const size_t rest = count % 4; rest > 0) {
    uint32_t word = 0;
    std::memcpy(&word, bytes + 4 * words, rest);
    BitHash last;
    last.add(word, static_cast<uint32_t>(words));
    add(last);
  }
  return static_cast<int64_t>((static_cast<uint64_t>(high.load()) << 32) | low.load());
}

[[maybe_unused]] const bool registered = register_kernel("bit_hash", DeviceType::cpu, [](const KernelRequest& request) {
  std::vector<size_t> bytes;
  for (const auto& input : request.node.inputs) bytes.push_back(input.spec().bytes());
  return one_candidate(request, [bytes](const Run& run) {
    for (size_t i = 0; i < bytes.size(); ++i)
      run.output<int64_t>()[i] = hash_bytes(run.input<std::byte>(i), bytes[i], *run.threads);
  });
});

}  // namespace

}  // namespace bonfire::cpu
