#include "bonfire/comm/control_block.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "bonfire/base/error.h"

namespace bonfire::comm {
namespace {

// States of the abort word.
constexpr uint32_t kAlive = 0, kWriting = 1, kAborted = 2;

size_t rounded(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

template <size_t kCapacity>
void keep_text(char (&to)[kCapacity], const std::string& text) {
  size_t length = std::min(text.size(), kCapacity - 1);
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

}  // namespace

std::string_view name_of(Operation operation) {
  constexpr std::string_view kNames[] = {"nothing",        "all_reduce", "broadcast", "all_gather",
                                         "reduce_scatter", "all_to_all", "send",      "receive",
                                         "barrier",        "buffer",     "split"};
  auto index = static_cast<size_t>(operation);
  return index < std::size(kNames) ? kNames[index] : "?";
}

std::string Call::text() const {
  std::string what(name_of(operation));
  if (operation == Operation::all_reduce || operation == Operation::reduce_scatter)
    what += fmt::format(" ({})", name_of(reduce));
  if (operation == Operation::broadcast) what += fmt::format(" from rank {}", root);
  return what + fmt::format(" of {} {}", count, name_of(dtype));
}

struct ControlBlock::Header {
  alignas(64) std::atomic<uint32_t> arrived;
  SharedWord epoch;  // barriers that all have passed
  alignas(64) std::atomic<uint32_t> abort_state;
  char abort_reason[2000];
};

size_t ControlBlock::bytes(int size) {
  auto ranks = static_cast<size_t>(size);
  return rounded(sizeof(Header) + ranks * sizeof(RankState)) + rounded(ranks * ranks * sizeof(Mailbox)) +
         ranks * kStages * kChunk;
}

ControlBlock::ControlBlock(std::shared_ptr<std::byte> memory, int rank, int size, const std::string& name)
    : rank_(rank), size_(size), memory_(std::move(memory)) {
  auto ranks = static_cast<size_t>(size);
  std::byte* at = memory_.get();
  header_ = reinterpret_cast<Header*>(at);
  states_ = reinterpret_cast<RankState*>(at + sizeof(Header));
  at += rounded(sizeof(Header) + ranks * sizeof(RankState));
  mailboxes_ = reinterpret_cast<Mailbox*>(at);
  staging_ = at + rounded(ranks * ranks * sizeof(Mailbox));
  keep_text(states_[rank].name, name);
}

// A rank writes its name before its first call, and never again.
std::string ControlBlock::name(int rank) const {
  bool known = rank == rank_ || states_[rank].last.load(std::memory_order_acquire) != 0;
  return known ? states_[rank].name : fmt::format("rank {}", rank);
}

std::string ControlBlock::last_of(int rank, uint64_t number) const {
  uint64_t last = states_[rank].last.load(std::memory_order_acquire);
  return fmt::format("{} in step {} (its call {}, ours is {})", name_of(static_cast<Operation>(last & 0xFF)),
                     states_[rank].step.load(std::memory_order_relaxed), last >> 8, number);
}

// The last to come opens the next epoch. Each has read the epoch before it comes, so it cannot miss the change.
void ControlBlock::barrier(Patience& patience, const Watch& watch) {
  uint32_t epoch = read_word(header_->epoch);
  uint32_t before = header_->arrived.fetch_add(1, std::memory_order_acq_rel);
  if (before + 1 == static_cast<uint32_t>(size_)) {
    header_->arrived.store(0, std::memory_order_relaxed);
    change_word(header_->epoch, epoch + 1);
    return;
  }
  wait_for_change(header_->epoch, epoch, patience, watch);
}

void ControlBlock::abort(const std::string& reason) {
  uint32_t expected = kAlive;
  if (!header_->abort_state.compare_exchange_strong(expected, kWriting)) return;
  keep_text(header_->abort_reason, reason);
  header_->abort_state.store(kAborted, std::memory_order_release);
}

bool ControlBlock::aborting() const { return header_->abort_state.load(std::memory_order_acquire) != kAlive; }
bool ControlBlock::aborted() const { return header_->abort_state.load(std::memory_order_acquire) == kAborted; }

std::string ControlBlock::abort_reason() const { return header_->abort_reason; }

}  // namespace bonfire::comm
