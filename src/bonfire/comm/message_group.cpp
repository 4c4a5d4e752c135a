#include "bonfire/comm/message_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/comm/arguments.h"
#include "bonfire/comm/lost_peer.h"
#include "bonfire/comm/reduce.h"

namespace bonfire::comm {
namespace {

constexpr size_t kStraight = 128 << 10;  // bytes up to which latency counts more than the links between hosts
constexpr size_t kSegment = 512 << 10;   // bytes
constexpr int kCollective = 0, kMessage = 1, kAnswer = 2;

std::span<std::byte> bytes_of(const Values& values) { return {static_cast<std::byte*>(values.data), values.bytes()}; }
std::span<const std::byte> bytes_of(const ConstValues& values) {
  return {static_cast<const std::byte*>(values.data), values.bytes()};
}

void copy_bytes(std::span<std::byte> to, std::span<const std::byte> from) {
  if (!from.empty() && to.data() != from.data()) std::memcpy(to.data(), from.data(), from.size());
}

struct Range {
  size_t begin = 0, end = 0;  // elements
  size_t count() const { return end - begin; }
};

Range share_of(size_t count, int share, int shares) {
  auto index = static_cast<size_t>(share), all = static_cast<size_t>(shares);
  return {count * index / all, count * (index + 1) / all};
}

Values part_of(const Values& values, Range range) {
  return {static_cast<std::byte*>(values.data) + range.begin * size_of(values.dtype), range.count(), values.dtype};
}

// Shares of a ring, cut into as many segments each: item t is segment t % segments of step t / segments.
struct Ring {
  Ring(const Values& values, int rank, int size) : values(values), rank(rank), size(size) {
    size_t share = (values.bytes() + static_cast<size_t>(size) - 1) / static_cast<size_t>(size);
    segments = std::max<size_t>(1, (share + kSegment - 1) / kSegment);
  }
  size_t items() const { return segments * static_cast<size_t>(size - 1); }
  bool last_step(size_t item) const { return item / segments + 2 == static_cast<size_t>(size); }
  // The share that is `distance` places before this rank's at the item's step.
  Values at(size_t item, int distance) const {
    int step = static_cast<int>(item / segments);
    int share = ((rank - step - distance) % size + size) % size;
    Values whole = part_of(values, share_of(values.count, share, size));
    auto segment = static_cast<int>(item % segments);
    return part_of(whole, share_of(whole.count, segment, static_cast<int>(segments)));
  }
  int next() const { return (rank + 1) % size; }
  int before() const { return (rank + size - 1) % size; }

  Values values;
  int rank, size;
  size_t segments = 1;  // of a share
};

}  // namespace

// Messages begun and not yet waited for. Empty ones are not sent: both sides know that they are.
class MessageGroup::Transfers {
 public:
  explicit Transfers(MessageGroup& group, int tag = kCollective) : group_(group), tag_(tag) {}

  void send(ConstBytes message, int to) {
    transfers_.push_back({message.empty() ? nullptr : group_.messenger_->send(message, to, tag_), to});
  }
  void receive(Bytes message, int from) {
    transfers_.push_back({message.empty() ? nullptr : group_.messenger_->receive(message, from, tag_), from});
  }
  size_t begun() const { return transfers_.size(); }
  void wait(size_t number) {
    auto& [transfer, peer] = transfers_[number];
    if (transfer) group_.wait_for(*transfer, peer);
    transfer.reset();
  }
  void wait_for_all() {
    for (size_t number = 0; number < transfers_.size(); ++number) wait(number);
  }

 private:
  MessageGroup& group_;
  int tag_;
  std::vector<Begun> transfers_;
};

MessageGroup::MessageGroup(std::shared_ptr<Messenger> messenger, Options options, std::shared_ptr<Progress> progress)
    : Group(std::move(progress)),
      messenger_(std::move(messenger)),
      options_(std::move(options)),
      notice_(messenger_->name(messenger_->rank())) {}

void MessageGroup::wait_for(Transfer& transfer, int peer) {
  while (progress()->step.load(std::memory_order_relaxed) == 0 && notice_.next() < deadline_) {
    try {
      return transfer.wait(notice_.next());
    } catch (const TimeoutError&) {  // it is only time to speak
    }
    notice_.look([&] { return fmt::format("{} ({})", messenger_->name(peer), progress()->call.load()); });
  }
  transfer.wait(deadline_);
}

// Runs the body of a call; what fails in it, whatever it is, is the end of the group, here and for the peers. When a
// peer has said why, that is the reason: the broken connection here only follows from it.
template <class Body>
void MessageGroup::guarded(const char* where, const Body& body) {
  if (error_) std::rethrow_exception(error_);
  progress()->call.store(where, std::memory_order_relaxed);
  const auto now = std::chrono::steady_clock::now();
  deadline_ = now + options_.timeout;
  notice_.begin(now);
  bool lost_peer = true;
  try {
    if (aborted_) throw_error<CommError>("the group was aborted");
    body();
    return;
  } catch (const TimeoutError& error) {
    error_ = too_late(where, error.what());
  } catch (const CommError& error) {
    error_ = std::make_exception_ptr(CommError(fmt::format("[{}] {}", where, error.what())));
  } catch (...) {
    error_ = std::current_exception();
    lost_peer = false;
  }
  if (std::string reason = lost_peer ? messenger_->stop_reason() : ""; !reason.empty())
    error_ = std::make_exception_ptr(CommError(fmt::format("[{}] {}", where, reason)));
  messenger_->stop(fmt::format("{} gave up: {}{}", messenger_->name(rank()),
                               lost_peer ? "" : fmt::format("[{}] ", where), reason_of(error_)));
  std::rethrow_exception(error_);
}

// Those who do not wait too, with what they were last seen in where somebody hears their heartbeats.
std::string MessageGroup::late_ranks() {
  std::vector<LifeSign> signs;
  try {
    if (options_.store != nullptr) signs = options_.store->last_signs();
  } catch (const Error&) {  // then without
  }
  std::string names;
  for (int peer : messenger_->silent_ranks()) {
    const std::string name = messenger_->name(peer);
    names += (names.empty() ? "" : "; ") + name;
    for (const LifeSign& sign : signs)
      if (sign.name == name)
        names += fmt::format(", which was last seen in {} (this rank is in {})", sign.doing, progress()->text());
  }
  return names;
}

std::exception_ptr MessageGroup::too_late(std::string_view where, const std::string& message) {
  std::string names = late_ranks();
  std::string text = names.empty() ? fmt::format("[{}] {}", where, message)
                                   : fmt::format("[{}] waited {} s for {}", where,
                                                 static_cast<double>(options_.timeout.count()) / 1000, names);
  return std::make_exception_ptr(TimeoutError(text));
}

void MessageGroup::all_reduce(Values values, Reduce reduce) {
  check_reduction("all_reduce", values.dtype, reduce);
  guarded("all_reduce", [&] {
    if (size() == 1 || values.count == 0) return;
    bool half = values.dtype == DType::bf16 || values.dtype == DType::f16;
    if (half || values.bytes() <= kStraight) return reduce_straight(values, reduce);
    reduce_round_the_ring(values, reduce);
    gather_round_the_ring(values);
  });
}

void MessageGroup::reduce_straight(Values values, Reduce reduce) {
  Range share = share_of(values.count, rank(), size());
  Values mine = part_of(values, share);
  std::vector<std::byte> others(mine.bytes() * static_cast<size_t>(size()));
  std::vector<const void*> sources(static_cast<size_t>(size()), mine.data);
  Transfers parts(*this);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    auto index = static_cast<size_t>(peer);
    Bytes place(others.data() + index * mine.bytes(), mine.bytes());
    sources[index] = place.data();
    parts.receive(place, peer);
  }
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) parts.send(bytes_of(part_of(values, share_of(values.count, peer, size()))), peer);
  parts.wait_for_all();
  reduce_values(sources, {&mine.data, 1}, mine.count, mine.dtype, {reduce, size()});
  Transfers results(*this);
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) results.receive(bytes_of(part_of(values, share_of(values.count, peer, size()))), peer);
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) results.send(bytes_of(mine), peer);
  results.wait_for_all();
}

// After it rank r has the finished share r + 1.
void MessageGroup::reduce_round_the_ring(Values values, Reduce reduce) {
  // Items on their way at a time: whoever adds may be late, because its processor computes, and the link goes on.
  constexpr size_t kAhead = 8;
  Ring ring(values, rank(), size());
  constexpr size_t kStride = kSegment + 64;  // shares that are not whole elements round up
  arrived_.resize(std::max(arrived_.size(), kAhead * kStride));
  auto place = [&](size_t item) { return Bytes(arrived_).subspan(item % kAhead * kStride, ring.at(item, 1).bytes()); };
  Transfers sends(*this), receives(*this);
  auto expect = [&](size_t item) {
    if (item < ring.items()) receives.receive(place(item), ring.before());
  };
  for (size_t item = 0; item < kAhead; ++item) expect(item);
  for (size_t item = 0; item < ring.items(); ++item) {
    // What is passed on at a step has been added to at the one before.
    for (size_t next = sends.begun(); next < std::min({ring.items(), item + kAhead, item + ring.segments}); ++next)
      sends.send(bytes_of(ring.at(next, 0)), ring.next());
    receives.wait(item);
    Values mine = ring.at(item, 1);
    const void* sources[] = {place(item).data(), mine.data};
    Reduce kind = reduce == Reduce::mean && !ring.last_step(item) ? Reduce::sum : reduce;
    if (mine.count > 0) reduce_values(sources, {&mine.data, 1}, mine.count, mine.dtype, {kind, size()});
    expect(item + kAhead);
  }
  sends.wait_for_all();
}

void MessageGroup::gather_round_the_ring(Values values) {
  Ring ring(values, rank() + 1, size());  // shares as seen from the finished one
  int next = (rank() + 1) % size(), before = (rank() + size() - 1) % size();
  Transfers sends(*this), receives(*this);
  for (size_t item = 0; item < ring.items(); ++item) receives.receive(bytes_of(ring.at(item, 1)), before);
  for (size_t item = 0; item < ring.items(); ++item) {
    if (item >= ring.segments) receives.wait(item - ring.segments);  // what is passed on
    sends.send(bytes_of(ring.at(item, 0)), next);
  }
  receives.wait_for_all();
  sends.wait_for_all();
}

// A tree over ranks counted from the root: rank v hears from v without its lowest bit. Each rank answers when it has
// the values, so that the sender knows of a peer that is gone.
void MessageGroup::broadcast(Values values, int root) {
  check_root("broadcast", root, size());
  guarded("broadcast", [&] {
    if (values.count == 0) return;
    int place = (rank() - root + size()) % size();
    auto rank_at = [&](int at) { return (at + root) % size(); };
    std::byte heard{1};
    Transfers down(*this), up(*this);
    std::vector<std::byte> answers(40);
    int bit = 1;
    while (bit < size() && (place & bit) == 0) bit <<= 1;
    if (place != 0) {
      down.receive(bytes_of(values), rank_at(place - bit));
      down.wait_for_all();
      up.send({&heard, 1}, rank_at(place - bit));
    }
    for (bit >>= 1; bit > 0; bit >>= 1) {
      if (place + bit >= size()) continue;
      up.receive({&answers[up.begun()], 1}, rank_at(place + bit));
      down.send(bytes_of(values), rank_at(place + bit));
    }
    up.wait_for_all();
    down.wait_for_all();
  });
}

// Part p of `to` goes to rank p; rank p's comes to part p of `from`. `to` of one part is for everyone.
void MessageGroup::exchange_parts(ConstBytes to, Bytes from, size_t part) {
  auto part_for = [&](int peer) { return to.size() == part ? to : to.subspan(static_cast<size_t>(peer) * part, part); };
  Transfers transfers(*this);
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) transfers.receive(from.subspan(static_cast<size_t>(peer) * part, part), peer);
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) transfers.send(part_for(peer), peer);
  copy_bytes(from.subspan(static_cast<size_t>(rank()) * part, part), part_for(rank()));
  transfers.wait_for_all();
}

void MessageGroup::all_gather(ConstValues mine, Values all) {
  check_parts("all_gather", mine, all, size());
  guarded("all_gather", [&] { exchange_parts(bytes_of(mine), bytes_of(all), mine.bytes()); });
}

void MessageGroup::all_to_all(ConstValues to, Values from) {
  check_exchange("all_to_all", to, from, size());
  guarded("all_to_all",
          [&] { exchange_parts(bytes_of(to), bytes_of(from), to.bytes() / static_cast<size_t>(size())); });
}

void MessageGroup::reduce_scatter(ConstValues all, Values mine, Reduce reduce) {
  check_parts("reduce_scatter", mine, all, size());
  check_reduction("reduce_scatter", mine.dtype, reduce);
  guarded("reduce_scatter", [&] {
    if (mine.count == 0) return;
    std::vector<std::byte> parts(all.bytes());  // [size, mine.count]
    exchange_parts(bytes_of(all), parts, mine.bytes());
    std::vector<const void*> sources;
    for (int peer = 0; peer < size(); ++peer)
      sources.push_back(parts.data() + static_cast<size_t>(peer) * mine.bytes());
    reduce_values(sources, {&mine.data, 1}, mine.count, mine.dtype, {reduce, size()});
  });
}

// The length goes first and is answered: a receiver that expects another one says so instead of losing its place.
// Answers have a tag of their own, since messages may come the other way at the same time.
void MessageGroup::send(ConstValues values, int to) {
  check_peer("send", to, rank(), size());
  guarded("send", [&] {
    uint64_t length = values.bytes();
    std::byte received{0};
    Transfers message(*this, kMessage), answer(*this, kAnswer);
    answer.receive({&received, 1}, to);
    message.send(std::as_bytes(std::span(&length, 1)), to);
    message.send(bytes_of(values), to);
    message.wait_for_all();
    answer.wait_for_all();
  });
}

void MessageGroup::receive(Values values, int from) {
  check_peer("receive", from, rank(), size());
  guarded("receive", [&] {
    uint64_t length = 0;
    std::byte received{1};
    Transfers message(*this, kMessage), answer(*this, kAnswer);
    message.receive(std::as_writable_bytes(std::span(&length, 1)), from);
    message.wait_for_all();
    if (length != values.bytes())
      throw_error<CommError>("{} sent {} bytes, expected {} ({} {})", messenger_->name(from), length, values.bytes(),
                             values.count, name_of(values.dtype));
    message.receive(bytes_of(values), from);
    message.wait_for_all();
    answer.send({&received, 1}, from);
    answer.wait_for_all();
  });
}

void MessageGroup::meet() {
  for (int distance = 1; distance < size(); distance *= 2) {
    std::byte here{1}, there{0};
    Transfers transfers(*this);
    transfers.receive({&there, 1}, (rank() - distance + size()) % size());
    transfers.send({&here, 1}, (rank() + distance) % size());
    transfers.wait_for_all();
  }
}

void MessageGroup::barrier() {
  guarded("barrier", [&] { meet(); });
}

GroupBuffer MessageGroup::buffer(size_t bytes) {
  static constexpr std::align_val_t kPage{4096};
  GroupBuffer made;
  guarded("buffer", [&] {
    auto* memory = static_cast<std::byte*>(::operator new[](std::max<size_t>(bytes, 1), kPage));
    std::memset(memory, 0, bytes);
    made = GroupBuffer(memory, [](std::byte* data) { ::operator delete[](data, kPage); });
  });
  return made;
}

std::shared_ptr<Group> MessageGroup::split(int colour) {
  std::vector<int> colours(static_cast<size_t>(size())), members;
  all_gather({&colour, 1, DType::i32}, {colours.data(), colours.size(), DType::i32});
  for (int peer = 0; peer < size(); ++peer)
    if (colours[static_cast<size_t>(peer)] == colour) members.push_back(peer);
  std::shared_ptr<Group> part;
  guarded("split", [&] {
    const std::string key = fmt::format("split{}/{}", splits_++, colour);
    part = std::make_shared<MessageGroup>(messenger_->split(members, key, deadline_), options_, progress());
  });
  return part;
}

std::shared_ptr<Group> MessageGroup::for_messages() {
  return std::make_shared<MessageGroup>(messenger_, options_, progress());
}

void MessageGroup::abort(const std::string& reason) {
  aborted_ = true;
  messenger_->stop(fmt::format("aborted by {}: {}", messenger_->name(rank()), reason));
}

}  // namespace bonfire::comm
