#include "tests/comm/conformance.h"

#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/base/random.h"
#include "bonfire/comm/reduce.h"

namespace bonfire::testing {
namespace {

using comm::ConstValues;
using comm::Reduce;
using comm::Values;

constexpr DType kDtypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16,
                             DType::i32, DType::i64, DType::u8,   DType::boolean};

// Small whole numbers: exact in every dtype, and their sums in f32, so that the definition has one answer.
int whole_number(int rank, size_t index) {
  return static_cast<int>((index * 7 + static_cast<size_t>(rank) * 29 + (index >> 5)) % 127);
}

// Room for three sets of values, made once for all checks.
struct Room {
  Room(comm::Group& group, Memory memory, size_t bytes) {
    for (comm::GroupBuffer& place : places)
      place = memory == Memory::buffer ? group.buffer(bytes) : comm::GroupBuffer(new std::byte[bytes]);
  }
  comm::GroupBuffer places[3];
};

// Elements of a dtype; numbers are put in and compared as double.
class Numbers {
 public:
  Numbers(const comm::GroupBuffer& place, size_t count, DType dtype) : place_(place), count_(count), dtype_(dtype) {}
  void* data() { return place_.get(); }
  Values values() { return {data(), count_, dtype_}; }

  template <class Number>  // double(size_t index)
  void fill(const Number& number) {
    dispatch(dtype_, [&](auto tag) {
      using T = typename decltype(tag)::type;
      for (size_t i = 0; i < count_; ++i) static_cast<T*>(data())[i] = converted<T>(number(i));
    });
  }
  template <class Number>
  void expect(const std::string& what, const Number& number) {
    dispatch(dtype_, [&](auto tag) {
      using T = typename decltype(tag)::type;
      for (size_t i = 0; i < count_; ++i) {
        T expected = converted<T>(number(i)), found = static_cast<T*>(data())[i];
        if (std::memcmp(&expected, &found, sizeof(T)) != 0)  // bits: NOLINT(bugprone-suspicious-memory-comparison)
          require(false,
                  fmt::format("{} of {} {}: element {} is {}, expected {}", what, count_, bonfire::name_of(dtype_), i,
                              static_cast<double>(found), static_cast<double>(expected)));
      }
    });
  }

 private:
  template <class T>
  static T converted(double number) {
    if constexpr (std::is_same_v<T, bool>)
      return static_cast<int64_t>(number) % 2 != 0;
    else if constexpr (std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>)
      return T(static_cast<float>(number));
    else if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<int64_t>(number));  // u8 wraps around
    else
      return static_cast<T>(number);
  }

  comm::GroupBuffer place_;
  size_t count_;
  DType dtype_;
};

// Element `index` of the reduction over ranks 0 .. size - 1, by the definition.
double reduced(int size, size_t index, DType dtype, Reduce reduce) {
  double sum = 0, most = 0;
  int odd = 0;
  for (int rank = 0; rank < size; ++rank) {
    int number = whole_number(rank, index);
    sum += number;
    most = std::max(most, static_cast<double>(number));
    odd |= number & 1;
  }
  if (dtype == DType::boolean) return odd;
  if (reduce == Reduce::max) return most;
  if (reduce == Reduce::sum) return sum;
  return dtype == DType::f64 ? sum / size : static_cast<float>(sum) / static_cast<float>(size);
}

void check_reductions(Rank& mine, const Room& room, size_t count, DType dtype) {
  comm::Group& group = *mine.group;
  auto parts = static_cast<size_t>(group.size());
  Numbers values(room.places[0], count, dtype), all(room.places[1], count * parts, dtype);
  for (Reduce reduce : {Reduce::sum, Reduce::mean, Reduce::max}) {
    if (reduce == Reduce::mean && !is_floating(dtype)) continue;
    values.fill([&](size_t i) { return whole_number(group.rank(), i); });
    group.all_reduce(values.values(), reduce);
    values.expect(fmt::format("all_reduce {}", comm::name_of(reduce)),
                  [&](size_t i) { return reduced(group.size(), i, dtype, reduce); });
    all.fill([&](size_t i) { return whole_number(group.rank(), i); });
    group.reduce_scatter(all.values(), values.values(), reduce);
    size_t first = static_cast<size_t>(group.rank()) * count;
    values.expect(fmt::format("reduce_scatter {}", comm::name_of(reduce)),
                  [&](size_t i) { return reduced(group.size(), first + i, dtype, reduce); });
  }
}

void check_moves(Rank& mine, const Room& room, size_t count, DType dtype) {
  comm::Group& group = *mine.group;
  auto parts = static_cast<size_t>(group.size()), me = static_cast<size_t>(group.rank());
  Numbers values(room.places[0], count, dtype), all(room.places[1], count * parts, dtype),
      to(room.places[2], count * parts, dtype);
  int root = group.size() / 2;
  values.fill([&](size_t i) { return whole_number(group.rank(), i); });
  group.broadcast(values.values(), root);
  values.expect("broadcast", [&](size_t i) { return whole_number(root, i); });

  values.fill([&](size_t i) { return whole_number(group.rank(), i); });
  group.all_gather(values.values(), all.values());
  all.expect("all_gather", [&](size_t i) { return whole_number(static_cast<int>(i / count), i % count); });

  to.fill([&](size_t i) { return whole_number(group.rank(), i); });
  group.all_to_all(to.values(), all.values());
  all.expect("all_to_all", [&](size_t i) { return whole_number(static_cast<int>(i / count), me * count + i % count); });
}

bool refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const ConfigError&) {
    return true;
  } catch (const ShapeError&) {
    return true;
  }
  return false;
}

}  // namespace

void check_collectives(Rank& rank, Memory memory, bool large) {
  size_t many = large ? 3'000'017 : 70'003;  // more than a chunk of comm/control_block.h
  Room room(*rank.group, memory, many * static_cast<size_t>(rank.size()) * sizeof(float));
  auto check = [&](size_t count, DType dtype) {
    check_reductions(rank, room, count, dtype);
    check_moves(rank, room, count, dtype);
  };
  check(0, DType::f32);
  check(1, DType::f32);
  for (DType dtype : kDtypes) check(259, dtype);
  check(many, DType::f32);
  if (large) check(many, DType::bf16);
  rank.group->barrier();
}

void check_equal_bits(Rank& rank) {
  constexpr size_t kCount = 5003;
  for (Memory memory : {Memory::own, Memory::buffer}) {
    Room room(*rank.group, memory, kCount * sizeof(double));
    for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      auto run = [&](Numbers& values) {
        values.fill([&](size_t i) { return normal_at(7, static_cast<uint64_t>(rank.rank()), i); });
        rank.group->all_reduce(values.values(), Reduce::mean);
      };
      Numbers first(room.places[0], kCount, dtype), again(room.places[1], kCount, dtype);
      run(first);
      run(again);
      size_t bytes = first.values().bytes();
      require(std::memcmp(first.data(), again.data(), bytes) == 0, "a second run gives other bits");
      rank.group->broadcast(again.values(), 0);
      require(std::memcmp(first.data(), again.data(), bytes) == 0, "rank 0 has other bits");
    }
  }
}

void check_messages(Rank& rank) {
  if (rank.size() == 1) return;
  int next = (rank.rank() + 1) % rank.size(), before = (rank.rank() + rank.size() - 1) % rank.size();
  const size_t counts[] = {1, 0, 7, 40'000, 3, 20'001, 1};
  auto element = [](int from, size_t number, size_t i) {
    return from * 1000 + static_cast<int>(number * 17 + i % 100);
  };
  auto send_all = [&] {
    for (size_t number = 0; number < std::size(counts); ++number) {
      std::vector<int> text(counts[number]);
      for (size_t i = 0; i < text.size(); ++i) text[i] = element(rank.rank(), number, i);
      rank.group->send({text.data(), text.size(), DType::i32}, next);
    }
  };
  auto receive_all = [&] {
    for (size_t number = 0; number < std::size(counts); ++number) {
      std::vector<int> text(counts[number]);
      rank.group->receive({text.data(), text.size(), DType::i32}, before);
      for (size_t i = 0; i < text.size(); ++i)
        if (text[i] != element(before, number, i)) require(false, fmt::format("message {} is wrong at {}", number, i));
    }
  };
  if (rank.rank() % 2 == 0) send_all();
  receive_all();
  if (rank.rank() % 2 != 0) send_all();
  rank.group->barrier();
}

void check_messages_beside(Rank& rank) {
  constexpr size_t kCount = 50'003;  // more than a mailbox of comm/control_block.h holds
  constexpr int kLetters = 5;
  std::vector<std::string> failures(2 * static_cast<size_t>(rank.size()));  // of each thread
  auto text = [](int from, int to, int number) {
    std::vector<int> numbers(kCount + static_cast<size_t>(number));
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = 1000 * from + 100 * to + number + static_cast<int>(i % 50);
    return numbers;
  };
  auto on_thread = [&](size_t place, const std::function<void(comm::Group&)>& body) {
    return std::thread([&failures, place, body, group = rank.group->for_messages()] {
      try {
        body(*group);
      } catch (const std::exception& error) {
        failures[place] = error.what();
      }
    });
  };
  std::vector<std::thread> threads;
  for (int peer = 0; peer < rank.size(); ++peer) {
    if (peer == rank.rank()) continue;
    const auto place = 2 * static_cast<size_t>(peer);
    threads.push_back(on_thread(place, [&, peer](comm::Group& group) {
      for (int number = 0; number < kLetters; ++number) {
        std::vector<int> message(kCount + static_cast<size_t>(number));
        group.receive({message.data(), message.size(), DType::i32}, peer);
        require(message == text(peer, rank.rank(), number), fmt::format("message {} from {} is wrong", number, peer));
      }
    }));
    threads.push_back(on_thread(place + 1, [&, peer](comm::Group& group) {
      for (int number = 0; number < kLetters; ++number) {
        const std::vector<int> message = text(rank.rank(), peer, number);
        group.send({message.data(), message.size(), DType::i32}, peer);
      }
    }));
  }
  for (int i = 0; i < 20; ++i) {
    int64_t one = 1;
    rank.group->all_reduce({&one, 1, DType::i64}, Reduce::sum);
    require(one == rank.size(), "a sum beside messages");
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) require(failure.empty(), failure);
  rank.group->barrier();
}

void check_split(Rank& rank) {
  int colour = rank.rank() % 2;
  std::shared_ptr<comm::Group> half = rank.group->split(colour);
  require(half->rank() == rank.rank() / 2, "ranks of a split keep their order");
  require(half->size() == (rank.size() + 1 - colour) / 2, "size of a split");
  comm::GroupBuffer buffer = rank.group->buffer(sizeof(int64_t));
  auto* number = reinterpret_cast<int64_t*>(buffer.get());
  *number = rank.rank() + 1;
  half->all_reduce({number, 1, DType::i64}, Reduce::sum);
  int64_t expected = 0;
  for (int other = colour; other < rank.size(); other += 2) expected += other + 1;
  require(*number == expected, fmt::format("the sum over a half is {}, expected {}", *number, expected));

  Rank one{half->split(half->rank()), rank.counters};
  require(one.size() == 1 && one.rank() == 0, "a group of one");
  one.group->all_reduce({number, 1, DType::i64}, Reduce::sum);
  require(*number == expected, "a sum over one rank");
  half->barrier();
  rank.group->barrier();
}

void check_refusals(Rank& rank) {
  std::vector<int64_t> numbers(static_cast<size_t>(rank.size()) * 2 + 1);
  Values all{numbers.data(), numbers.size(), DType::i64};
  comm::Group& group = *rank.group;
  require(refused([&] { group.all_reduce(all, Reduce::mean); }), "the mean of integers");
  require(refused([&] { group.reduce_scatter(all, {numbers.data(), 2, DType::i64}, Reduce::sum); }), "uneven parts");
  require(refused([&] { group.broadcast(all, group.size()); }), "a root that is none");
  require(refused([&] { group.send(all, group.rank()); }), "a message to itself");
  require(refused([&] { group.receive(all, -1); }), "a message from nobody");
  require(refused([&] { group.all_gather({numbers.data(), 1, DType::f32}, all); }), "two dtypes");
  require(group.size() == 1 || refused([&] { group.all_to_all(all, all); }), "elements that cannot be shared equally");
  group.barrier();
}

}  // namespace bonfire::testing
