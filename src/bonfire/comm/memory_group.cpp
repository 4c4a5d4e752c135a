#include "bonfire/comm/memory_group.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/comm/arguments.h"
#include "bonfire/comm/lost_peer.h"

namespace bonfire::comm {
namespace {

constexpr size_t kLine = 64;  // bytes; shares begin at multiples of it, so that no two ranks write to one line

struct ByteRange {
  size_t begin = 0, end = 0;  // bytes
  size_t bytes() const { return end - begin; }
};

ByteRange byte_share(size_t bytes, int rank, int size) {
  auto ranks = static_cast<size_t>(size), index = static_cast<size_t>(rank);
  size_t lines = (bytes + kLine - 1) / kLine;
  return {std::min(bytes, lines * index / ranks * kLine), std::min(bytes, lines * (index + 1) / ranks * kLine)};
}

ByteRange overlap(ByteRange a, ByteRange b) {
  size_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

ByteRange part_of(size_t bytes, int rank) {
  auto index = static_cast<size_t>(rank);
  return {bytes * index, bytes * (index + 1)};
}

void copy_bytes(void* to, const void* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

std::byte* data_of(const Values& values) { return static_cast<std::byte*>(values.data); }
const std::byte* data_of(const ConstValues& values) { return static_cast<const std::byte*>(values.data); }

template <class E>
std::exception_ptr error_of(const std::string& text) {
  return std::make_exception_ptr(E(text));
}

}  // namespace

// Longer than it takes to wake a sleeper: else two ranks that have both slept once would sleep at each call, because
// neither is awake before the other has stopped spinning.
std::chrono::nanoseconds spin_for(int size) {
  return size <= ::sysconf(_SC_NPROCESSORS_ONLN) ? std::chrono::microseconds(50) : std::chrono::microseconds(0);
}

MemoryGroup::MemoryGroup(ControlBlock block, std::shared_ptr<Neighbours> neighbours, std::vector<int> members,
                         Options options, std::shared_ptr<Progress> progress)
    : Group(std::move(progress)),
      block_(std::move(block)),
      neighbours_(std::move(neighbours)),
      members_(std::move(members)),
      options_(options),
      watch_([this] { return trouble(); }),
      patience_(options.spin),
      notice_(block_.name(block_.rank())) {}

MemoryGroup::~MemoryGroup() {
  if (!options_.only_messages) block_.state(rank()).left.store(1, std::memory_order_release);
}

// Runs the body of a call; what fails in it is the end of the group, here and for the peers.
template <class Body>
void MemoryGroup::guarded(Operation operation, const Body& body) {
  {
    std::lock_guard lock(mutex_);
    if (!error_ && block_.aborted()) error_ = abort_error(operation);
    if (error_) std::rethrow_exception(error_);
  }
  operation_ = operation;
  partner_ = -1;
  const auto now = std::chrono::steady_clock::now();
  deadline_ = now + options_.timeout;
  notice_.begin(now);
  // Messages are not numbered: their ranks make them alone.
  if (operation != Operation::send && operation != Operation::receive) ++number_;
  if (!options_.only_messages) {  // the state shows the group's calls, which are made by another thread
    progress()->call.store(name_of(operation).data(), std::memory_order_relaxed);
    block_.state(rank()).step.store(progress()->step, std::memory_order_relaxed);
    block_.state(rank()).last.store(number_ << 8 | static_cast<uint64_t>(operation), std::memory_order_release);
  }
  try {
    body();
  } catch (...) {  // whatever it is, the peers must not wait for this rank
    {
      std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
    block_.abort(fmt::format("{} gave up: {}", block_.name(rank()), reason_of(std::current_exception())));
    throw;
  }
}

std::exception_ptr MemoryGroup::abort_error(Operation operation) {
  return error_of<CommError>(fmt::format("[{}] {}", name_of(operation), block_.abort_reason()));
}

// What the watch of every wait asks for.
std::exception_ptr MemoryGroup::trouble() {
  if (block_.aborted()) return abort_error(operation_);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    bool left = block_.state(peer).left.load(std::memory_order_acquire) != 0;
    bool awaited = partner_ < 0 || partner_ == peer;
    const char* how = left ? "has left the group" : "is gone: its process has ended";
    if (left ? !awaited : !neighbours_->gone(members_[static_cast<size_t>(peer)])) continue;
    // It may have left because the group was aborted since the look above, and that says more.
    if (left && block_.aborted()) return abort_error(operation_);
    if (left && block_.aborting()) continue;
    return error_of<CommError>(fmt::format("[{}] {} {}; the last it began was {}", name_of(operation_),
                                           block_.name(peer), how, block_.last_of(peer, number_)));
  }
  if (progress()->step.load(std::memory_order_relaxed) == 0)
    notice_.look([&] { return fmt::format("{} ({})", late_ranks(), name_of(operation_)); });
  if (std::chrono::steady_clock::now() < deadline_) return nullptr;
  return error_of<TimeoutError>(fmt::format("[{}] waited {} s for {}", name_of(operation_),
                                            static_cast<double>(options_.timeout.count()) / 1000, late_ranks()));
}

std::string MemoryGroup::late_ranks() const {
  std::string names;
  for (int peer = 0; peer < size(); ++peer) {
    uint64_t last = block_.state(peer).last.load(std::memory_order_acquire);
    bool late = partner_ < 0 ? last >> 8 < number_ : peer == partner_;
    if (!late) continue;
    names += fmt::format("{}{}, which last began {}", names.empty() ? "" : "; ", block_.name(peer),
                         block_.last_of(peer, number_));
  }
  return names.empty() ? "a rank that is in the same call" : names;
}

void MemoryGroup::meet() { block_.barrier(patience_, watch_); }

// Tells the peers what is called here and compares it with what they call.
void MemoryGroup::begin(const Call& call, ConstValues mine) {
  Call& told = block_.state(rank()).calls[number_ % 2];
  told = call;
  told.address = neighbours_->locate(mine.data, mine.bytes(), members_);
  meet();
  for (int peer = 0; peer < size(); ++peer)
    if (!call_of(peer).same_as(call))
      throw_error<CommError>("[{}] {} calls {}, but {} calls {}: all ranks must make the same calls in the same order",
                             name_of(call.operation), block_.name(rank()), call.text(), block_.name(peer),
                             call_of(peer).text());
}

bool MemoryGroup::all_located(const Call& call) const {
  for (int peer = 0; peer < size(); ++peer) {
    bool shows = call.operation != Operation::broadcast || peer == call.root;
    if (shows && call_of(peer).address.buffer == 0) return false;
  }
  return true;
}

// Shows this rank's values to all and visits everyone's: at once where all can be seen, else chunk by chunk. Of a
// broadcast only the root's piece is there.
void MemoryGroup::show(const Call& call, ConstValues mine, const Visit& visit) {
  begin(call, mine);
  size_t total = mine.bytes();
  std::vector<const std::byte*> pieces(static_cast<size_t>(size()));
  if (all_located(call)) {
    for (int peer = 0; peer < size(); ++peer)
      if (call.operation != Operation::broadcast || peer == call.root)
        pieces[static_cast<size_t>(peer)] =
            neighbours_->find(members_[static_cast<size_t>(peer)], call_of(peer).address);
    if (total > 0) visit(pieces, 0, total);
    meet();
    return;
  }
  for (size_t begin = 0; begin < total; begin += ControlBlock::kChunk, ++chunk_) {
    size_t bytes = std::min(ControlBlock::kChunk, total - begin);
    if (call.operation != Operation::broadcast || rank() == call.root)
      copy_bytes(block_.stage(rank(), chunk_), data_of(mine) + begin, bytes);
    meet();
    for (int peer = 0; peer < size(); ++peer) pieces[static_cast<size_t>(peer)] = block_.stage(peer, chunk_);
    visit(pieces, begin, bytes);
  }
}

void MemoryGroup::all_reduce(Values values, Reduce reduce) {
  check_reduction("all_reduce", values.dtype, reduce);
  guarded(Operation::all_reduce, [&] {
    Call call{.operation = Operation::all_reduce, .dtype = values.dtype, .reduce = reduce, .count = values.count};
    begin(call, values);
    if (all_located(call))
      reduce_in_place(values, reduce);
    else
      reduce_staged(values, reduce);
  });
}

void MemoryGroup::reduce_in_place(Values values, Reduce reduce) {
  ByteRange share = byte_share(values.bytes(), rank(), size());
  std::vector<void*> shares(static_cast<size_t>(size()));
  for (int peer = 0; peer < size(); ++peer)
    shares[static_cast<size_t>(peer)] =
        neighbours_->find(members_[static_cast<size_t>(peer)], call_of(peer).address) + share.begin;
  if (share.bytes() > 0)
    reduce_values({shares.data(), shares.size()}, shares, share.bytes() / size_of(values.dtype), values.dtype,
                  {reduce, size()});
  meet();
}

// Rank r combines the r-th share of a chunk into its own stage, where everyone fetches it one barrier later.
void MemoryGroup::reduce_staged(Values values, Reduce reduce) {
  size_t total = values.bytes();
  std::byte* data = data_of(values);
  auto copy_out = [&](size_t begin, uint64_t chunk) {
    size_t bytes = std::min(ControlBlock::kChunk, total - begin);
    for (int peer = 0; peer < size(); ++peer) {
      ByteRange share = byte_share(bytes, peer, size());
      copy_bytes(data + begin + share.begin, block_.stage(peer, chunk) + share.begin, share.bytes());
    }
  };
  std::vector<const void*> shares(static_cast<size_t>(size()));
  for (size_t begin = 0; begin < total; begin += ControlBlock::kChunk, ++chunk_) {
    size_t bytes = std::min(ControlBlock::kChunk, total - begin);
    copy_bytes(block_.stage(rank(), chunk_), data + begin, bytes);
    meet();
    ByteRange share = byte_share(bytes, rank(), size());
    for (int peer = 0; peer < size(); ++peer)
      shares[static_cast<size_t>(peer)] = block_.stage(peer, chunk_) + share.begin;
    void* result = block_.stage(rank(), chunk_) + share.begin;
    reduce_values(shares, {&result, 1}, share.bytes() / size_of(values.dtype), values.dtype, {reduce, size()});
    if (begin > 0) copy_out(begin - ControlBlock::kChunk, chunk_ - 1);
  }
  if (total == 0) return;
  meet();
  copy_out((total - 1) / ControlBlock::kChunk * ControlBlock::kChunk, chunk_ - 1);
}

void MemoryGroup::broadcast(Values values, int root) {
  check_root("broadcast", root, size());
  guarded(Operation::broadcast, [&] {
    Call call{.operation = Operation::broadcast, .dtype = values.dtype, .root = root, .count = values.count};
    show(call, values, [&](Pieces pieces, size_t begin, size_t bytes) {
      if (rank() != root) copy_bytes(data_of(values) + begin, pieces[static_cast<size_t>(root)], bytes);
    });
  });
}

void MemoryGroup::all_gather(ConstValues mine, Values all) {
  check_parts("all_gather", mine, all, size());
  guarded(Operation::all_gather, [&] {
    Call call{.operation = Operation::all_gather, .dtype = mine.dtype, .count = mine.count};
    show(call, mine, [&](Pieces pieces, size_t begin, size_t bytes) {
      for (size_t peer = 0; peer < pieces.size(); ++peer)
        copy_bytes(data_of(all) + peer * mine.bytes() + begin, pieces[peer], bytes);
    });
  });
}

void MemoryGroup::reduce_scatter(ConstValues all, Values mine, Reduce reduce) {
  check_parts("reduce_scatter", mine, all, size());
  check_reduction("reduce_scatter", mine.dtype, reduce);
  guarded(Operation::reduce_scatter, [&] {
    Call call{.operation = Operation::reduce_scatter, .dtype = mine.dtype, .reduce = reduce, .count = mine.count};
    ByteRange part = part_of(mine.bytes(), rank());
    std::vector<const void*> sources(static_cast<size_t>(size()));
    show(call, all, [&](Pieces pieces, size_t begin, size_t bytes) {
      ByteRange here = overlap(part, {begin, begin + bytes});
      for (size_t peer = 0; peer < pieces.size(); ++peer) sources[peer] = pieces[peer] + (here.begin - begin);
      void* result = data_of(mine) + (here.begin - part.begin);
      if (here.bytes() > 0)
        reduce_values(sources, {&result, 1}, here.bytes() / size_of(mine.dtype), mine.dtype, {reduce, size()});
    });
  });
}

void MemoryGroup::all_to_all(ConstValues to, Values from) {
  check_exchange("all_to_all", to, from, size());
  guarded(Operation::all_to_all, [&] {
    Call call{.operation = Operation::all_to_all, .dtype = to.dtype, .count = to.count};
    size_t part_bytes = to.bytes() / static_cast<size_t>(size());
    ByteRange part = part_of(part_bytes, rank());
    show(call, to, [&](Pieces pieces, size_t begin, size_t bytes) {
      ByteRange here = overlap(part, {begin, begin + bytes});
      for (size_t peer = 0; peer < pieces.size(); ++peer)
        copy_bytes(data_of(from) + peer * part_bytes + (here.begin - part.begin), pieces[peer] + (here.begin - begin),
                   here.bytes());
    });
  });
}

void MemoryGroup::barrier() {
  guarded(Operation::barrier, [&] { begin({.operation = Operation::barrier}, {}); });
}

// A message: its length in 8 bytes, then its bytes, as far as there is room in the ring at a time.
void MemoryGroup::put_message(Mailbox& box, const std::byte* data, size_t bytes) {
  uint32_t written = box.written.value.load(std::memory_order_relaxed), read = read_word(box.read);
  while (bytes > 0) {
    if (written - read == Mailbox::kBytes) read = wait_for_change(box.read, read, patience_, watch_);
    uint32_t at = written % Mailbox::kBytes;
    size_t here = std::min({bytes, size_t{Mailbox::kBytes - at}, size_t{Mailbox::kBytes - (written - read)}});
    std::memcpy(box.ring + at, data, here);
    change_word(box.written, written += static_cast<uint32_t>(here));
    data += here;
    bytes -= here;
  }
}

void MemoryGroup::take_message(Mailbox& box, std::byte* data, size_t bytes) {
  uint32_t read = box.read.value.load(std::memory_order_relaxed), written = read_word(box.written);
  while (bytes > 0) {
    if (written == read) written = wait_for_change(box.written, written, patience_, watch_);
    uint32_t at = read % Mailbox::kBytes;
    size_t here = std::min({bytes, size_t{Mailbox::kBytes - at}, size_t{written - read}});
    std::memcpy(data, box.ring + at, here);
    change_word(box.read, read += static_cast<uint32_t>(here));
    data += here;
    bytes -= here;
  }
}

void MemoryGroup::send(ConstValues values, int to) {
  check_peer("send", to, rank(), size());
  guarded(Operation::send, [&] {
    partner_ = to;
    Mailbox& box = block_.mailbox(rank(), to);
    uint64_t length = values.bytes();
    put_message(box, reinterpret_cast<const std::byte*>(&length), sizeof length);
    put_message(box, data_of(values), values.bytes());
  });
}

void MemoryGroup::receive(Values values, int from) {
  check_peer("receive", from, rank(), size());
  guarded(Operation::receive, [&] {
    partner_ = from;
    Mailbox& box = block_.mailbox(from, rank());
    uint64_t length = 0;
    take_message(box, reinterpret_cast<std::byte*>(&length), sizeof length);
    if (length != values.bytes())
      throw_error<CommError>("[receive] {} sent {} bytes, expected {} ({} {})", block_.name(from), length,
                             values.bytes(), values.count, name_of(values.dtype));
    take_message(box, data_of(values), values.bytes());
  });
}

GroupBuffer MemoryGroup::buffer(size_t bytes) {
  GroupBuffer made;
  guarded(Operation::buffer, [&] {
    begin({.operation = Operation::buffer, .count = bytes}, {});
    made = neighbours_->buffer(bytes, *this);
  });
  return made;
}

std::shared_ptr<Group> MemoryGroup::split(int colour) {
  std::vector<int> colours(static_cast<size_t>(size()));
  all_gather({&colour, 1, DType::i32}, {colours.data(), colours.size(), DType::i32});
  std::vector<int> members;
  int mine = 0;
  for (int peer = 0; peer < size(); ++peer) {
    if (colours[static_cast<size_t>(peer)] != colour) continue;
    if (peer == rank()) mine = static_cast<int>(members.size());
    members.push_back(members_[static_cast<size_t>(peer)]);
  }
  auto count = static_cast<int>(members.size());
  std::shared_ptr<Group> part;
  guarded(Operation::split, [&] {
    begin({.operation = Operation::split}, {});
    ControlBlock block(neighbours_->share(ControlBlock::bytes(count), members, *this), mine, count,
                       block_.name(rank()));
    part = std::make_shared<MemoryGroup>(std::move(block), neighbours_, std::move(members), options_, progress());
  });
  return part;
}

std::shared_ptr<Group> MemoryGroup::for_messages() {
  Options options = options_;
  options.only_messages = true;
  return std::make_shared<MemoryGroup>(block_, neighbours_, members_, options, progress());
}

void MemoryGroup::abort(const std::string& reason) {
  block_.abort(fmt::format("aborted by {}: {}", block_.name(rank()), reason));
}

}  // namespace bonfire::comm
