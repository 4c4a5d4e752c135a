#include "bonfire/comm/shm/shm_group.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/comm/arguments.h"
#include "bonfire/comm/group_backend.h"
#include "bonfire/comm/memory_group.h"
#include "bonfire/comm/rendezvous.h"
#include "bonfire/comm/shm/mesh.h"

namespace bonfire::comm {
namespace {

constexpr size_t kPage = 4096;

size_t whole_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

FileDescriptor new_memory(size_t bytes) {
  FileDescriptor memory(::memfd_create("bonfire", MFD_CLOEXEC));
  if (memory.get() < 0 || ::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0)
    throw_error<DeviceError>("[shm] cannot make {} bytes of shared memory: {}", bytes, std::strerror(errno));
  return memory;
}

std::shared_ptr<std::byte> map(const FileDescriptor& memory, size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (data == MAP_FAILED)
    throw_error<DeviceError>("[shm] cannot map {} bytes of shared memory: {}", bytes, std::strerror(errno));
  return {static_cast<std::byte*>(data), [bytes](std::byte* at) { ::munmap(at, bytes); }};
}

// A buffer of all its owners: a page that counts the handles still held, then a part for each owner.
struct SharedBuffer {
  std::shared_ptr<std::byte> memory = {};  // [kPage + owners.size() * stride]
  std::vector<int> owners;
  size_t stride = 0;  // bytes

  std::atomic<uint32_t>& dropped() const { return *reinterpret_cast<std::atomic<uint32_t>*>(memory.get()); }
  bool abandoned() const { return dropped().load(std::memory_order_acquire) == owners.size(); }
  bool seen_by(std::span<const int> ranks) const {
    return std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return part(rank) != nullptr; });
  }
  std::byte* part(int rank) const {  // null when it owns none
    auto place = std::find(owners.begin(), owners.end(), rank);
    if (place == owners.end()) return nullptr;
    return memory.get() + kPage + static_cast<size_t>(place - owners.begin()) * stride;
  }
};

class Processes : public Neighbours {
 public:
  explicit Processes(const Membership& membership) : mesh_(membership) {}

  bool gone(int rank) override { return mesh_.gone(rank); }

  std::shared_ptr<std::byte> share(size_t bytes, std::span<const int> members, MemoryGroup& group) override {
    return share(bytes, members, 0,
                 [&] {
                   if (std::exception_ptr trouble = group.trouble()) std::rethrow_exception(trouble);
                 })
        .first;
  }

  // The first member makes the memory and hands it to the others, with a number of its choice.
  std::pair<std::shared_ptr<std::byte>, uint64_t> share(size_t bytes, std::span<const int> members, uint64_t number,
                                                        const std::function<void()>& idle) {
    if (members[0] != mesh_.rank()) return {map(mesh_.take(members[0], number, idle), bytes), number};
    FileDescriptor memory = new_memory(bytes);
    for (int member : members.subspan(1)) mesh_.give(member, memory, number);
    return {map(memory, bytes), number};
  }

  SharedAddress locate(const void* data, size_t bytes, std::span<const int> members) override {
    std::lock_guard lock(mutex_);
    auto at = static_cast<const std::byte*>(data);
    for (const auto& [number, buffer] : buffers_) {
      if (!buffer.seen_by(members)) continue;
      const std::byte* part = buffer.part(mesh_.rank());
      if (!std::less<>()(at, part) && !std::less<>()(part + buffer.stride, at + bytes))
        return {number, static_cast<uint64_t>(at - part)};
    }
    return {};
  }

  std::byte* find(int rank, SharedAddress address) override {
    std::lock_guard lock(mutex_);
    auto known = buffers_.find(address.buffer);
    std::byte* part = known == buffers_.end() ? nullptr : known->second.part(rank);
    BONFIRE_CHECK(part != nullptr, "buffer {} of rank {} is not known here", address.buffer, rank);
    return part + address.offset;
  }

  GroupBuffer buffer(size_t bytes, MemoryGroup& group) override {
    forget_abandoned();
    SharedBuffer made{.owners = {group.members().begin(), group.members().end()}, .stride = whole_pages(bytes)};
    uint64_t number = (static_cast<uint64_t>(mesh_.rank()) + 1) << 32 | ++buffers_made_;
    auto idle = [&] {
      if (std::exception_ptr trouble = group.trouble()) std::rethrow_exception(trouble);
    };
    std::tie(made.memory, number) = share(kPage + made.owners.size() * made.stride, made.owners, number, idle);
    std::lock_guard lock(mutex_);
    buffers_[number] = made;
    return GroupBuffer(made.part(mesh_.rank()), [made](std::byte*) { made.dropped().fetch_add(1); });
  }

 private:
  // A buffer stays mapped until the last owner has dropped its handle: until then peers may still name it.
  void forget_abandoned() {
    std::lock_guard lock(mutex_);
    std::erase_if(buffers_, [](const auto& entry) { return entry.second.abandoned(); });
  }

  Mesh mesh_;
  std::mutex mutex_;
  std::map<uint64_t, SharedBuffer> buffers_;
  uint64_t buffers_made_ = 0;
};

}  // namespace

std::shared_ptr<Group> shm_group(const Membership& membership) {
  check_membership("shm", membership.rank, membership.size);
  auto processes = std::make_shared<Processes>(membership);
  std::vector<int> members(static_cast<size_t>(membership.size));
  std::iota(members.begin(), members.end(), 0);
  auto deadline = std::chrono::steady_clock::now() + membership.timeout;
  WaitNotice notice(fmt::format("rank {}", membership.rank));
  auto idle = [&] {
    if (processes->gone(0))
      throw_error<CommError>("[shm] rank 0 ended while rank {} joined its group", membership.rank);
    if (std::chrono::steady_clock::now() > deadline)
      throw_error<TimeoutError>("[shm] rank {} waited {} s for rank 0 to make the group", membership.rank,
                                static_cast<double>(membership.timeout.count()) / 1000);
    notice.look([&] { return fmt::format("rank 0 to make the group {}", membership.name); });
  };
  std::shared_ptr<std::byte> memory = processes->share(ControlBlock::bytes(membership.size), members, 0, idle).first;
  ControlBlock block(std::move(memory), membership.rank, membership.size, process_name(membership.rank));
  auto group = std::make_shared<MemoryGroup>(
      std::move(block), std::move(processes), std::move(members),
      MemoryGroup::Options{.timeout = membership.timeout, .spin = spin_for(membership.size)});
  group->barrier();
  return group;
}

namespace {
const bool shm_registered = register_group_backend("shm", [](const GroupRequest& request) {
  if (!request.one_host)
    throw_error<ConfigError>("[fleet] backend shm is for ranks of one host; use gloo or mpi across hosts");
  return shm_group(request.membership);
});
}  // namespace

}  // namespace bonfire::comm
