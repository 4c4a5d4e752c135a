#include "bonfire/comm/local/local_group.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/comm/arguments.h"
#include "bonfire/comm/memory_group.h"

namespace bonfire::comm {
namespace {

// Zeros, of which only touched pages cost memory.
std::shared_ptr<std::byte> zeros(size_t bytes) {
  bytes = std::max<size_t>(bytes, 1);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw_error<DeviceError>("[comm] no memory for {} bytes: {}", bytes, std::strerror(errno));
  return {static_cast<std::byte*>(memory), [bytes](std::byte* data) { ::munmap(data, bytes); }};
}

// Threads end with their process, and see all of its memory.
class Threads : public Neighbours {
 public:
  explicit Threads(bool staged) : staged_(staged) {}

  bool gone(int) override { return false; }

  // The first member makes the memory; where its handle is, is told to all ranks.
  std::shared_ptr<std::byte> share(size_t bytes, std::span<const int> members, MemoryGroup& group) override {
    std::shared_ptr<std::byte> memory;
    std::span<const int> ranks = group.members();
    if (ranks[static_cast<size_t>(group.rank())] == members[0]) memory = zeros(bytes);
    auto mine = reinterpret_cast<uintptr_t>(&memory);
    std::vector<uintptr_t> handles(ranks.size());
    group.all_gather({&mine, 1, DType::i64}, {handles.data(), handles.size(), DType::i64});
    auto leader = static_cast<size_t>(std::find(ranks.begin(), ranks.end(), members[0]) - ranks.begin());
    std::shared_ptr<std::byte> shared = *reinterpret_cast<std::shared_ptr<std::byte>*>(handles[leader]);
    group.barrier();  // the handle lives until all have copied it
    return shared;
  }

  SharedAddress locate(const void* data, size_t, std::span<const int>) override {
    return staged_ ? SharedAddress{} : SharedAddress{1, reinterpret_cast<uintptr_t>(data)};
  }
  std::byte* find(int, SharedAddress address) override { return reinterpret_cast<std::byte*>(address.offset); }
  GroupBuffer buffer(size_t bytes, MemoryGroup&) override {
    std::shared_ptr<std::byte> memory = zeros(bytes);
    return GroupBuffer(memory, memory.get());
  }

 private:
  bool staged_;
};

}  // namespace

std::vector<std::shared_ptr<Group>> local_groups(int size, LocalOptions options) {
  check_membership("local_groups", 0, size);
  auto neighbours = std::make_shared<Threads>(options.staged);
  std::shared_ptr<std::byte> memory = zeros(ControlBlock::bytes(size));
  std::vector<int> members(static_cast<size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  std::vector<std::shared_ptr<Group>> groups;
  for (int rank = 0; rank < size; ++rank)
    groups.push_back(std::make_shared<MemoryGroup>(
        ControlBlock(memory, rank, size, fmt::format("rank {} (thread)", rank)), neighbours, members,
        MemoryGroup::Options{.timeout = options.timeout, .spin = spin_for(size)}));
  return groups;
}

}  // namespace bonfire::comm
