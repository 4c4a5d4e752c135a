// Every backend keeps the contract of comm/group.h, from 1 to 8 ranks, and every wait of it ends.
//
//   BONFIRE_COMM_STRESS=N test_comm      every size of every backend, large values too, and N rounds of it

#include "tests/comm/conformance.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <random>
#include <thread>

#include "bonfire/base/error.h"

namespace bonfire::testing::conformance_test {
namespace {

using namespace std::chrono_literals;
using comm::Reduce;

int stress_rounds() {
  const char* rounds = std::getenv("BONFIRE_COMM_STRESS");
  return rounds == nullptr ? 0 : std::atoi(rounds);
}

struct Case {
  Backend backend;
  int size;
};
std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return name_of(info.param.backend) + std::to_string(info.param.size);
}

class LocalGroup : public ::testing::TestWithParam<Case> {};
class LocalGroupFaults : public ::testing::TestWithParam<Case> {};
class ShmGroup : public ::testing::TestWithParam<Case> {};
class ShmGroupFaults : public ::testing::TestWithParam<Case> {};
class MessageGroup : public ::testing::TestWithParam<Case> {
  void SetUp() override {
    if (!is_here(GetParam().backend)) GTEST_SKIP() << "no " << name_of(GetParam().backend) << " here";
  }
};
class MessageGroupFaults : public MessageGroup {};

void keep_the_contract(const Case& one) {
  for (int round = 0; round < std::max(1, stress_rounds()); ++round)
    expect_all_fine(run_ranks(one.backend, one.size, [&](Rank& rank) {
      check_collectives(rank, Memory::own, stress_rounds() > 0);
      if (one.backend == Backend::shm) check_collectives(rank, Memory::buffer, stress_rounds() > 0);
      check_equal_bits(rank);
      check_messages(rank);
      check_messages_beside(rank);
      check_split(rank);
      check_refusals(rank);
    }));
}

// What a call throws; the rank fails when it throws nothing or another class.
template <class E>
std::string thrown(const std::function<void()>& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  throw std::runtime_error("no error");
}

void require_text(const std::string& message, const std::string& part) {
  require(message.find(part) != std::string::npos, "'" + part + "' is not in: " + message);
}

void sum_one(Rank& rank) {
  float one = 1;
  rank.group->all_reduce({&one, 1, DType::f32}, Reduce::sum);
}

// Rank 1 never comes.
void name_who_is_late(const Case& one) {
  expect_all_fine(run_ranks(
      one.backend, one.size,
      [](Rank& rank) {
        if (rank.rank() == 1) return rank.wait_for(0, rank.size() - 1);  // until all have given up
        // The first to give up says so to the others.
        std::string first;
        try {
          sum_one(rank);
        } catch (const TimeoutError& error) {
          first = error.what();
        } catch (const CommError& error) {
          first = error.what();
        }
        ++rank.counters[0];
        require_text(first, "waited 3 s for rank 1");
        require(thrown<Error>([&] { rank.group->barrier(); }) == first, "a later call gives another reason");
      },
      3s));  // joining must be done in it too, in slow builds
}

void hear_of_an_abort(const Case& one) {
  expect_all_fine(run_ranks(one.backend, one.size, [](Rank& rank) {
    std::thread other;
    if (rank.rank() == 0)
      other = std::thread([&] {
        std::this_thread::sleep_for(20ms);  // so that most are inside their call; right either way
        rank.group->abort("the user wants to stop");
      });
    std::string message = thrown<CommError>([&] {
      if (rank.rank() == 1) rank.wait_for(0, rank.size() - 1);  // until all others were told
      sum_one(rank);  // which may still succeed where messages wait on the way
      sum_one(rank);
    });
    ++rank.counters[0];
    require_text(message, "the user wants to stop");
    require_text(thrown<CommError>([&] { rank.group->barrier(); }), "the user wants to stop");
    if (other.joinable()) other.join();
  }));
}

// Rank 1 ends in the middle; its peers would wait a minute for it.
void name_who_is_gone(const Case& one) {
  auto endings = run_ranks(one.backend, one.size, [&](Rank& rank) {
    for (int i = 0; i < 10; ++i) sum_one(rank);
    if (rank.rank() == 1) {
      if (are_threads(one.backend)) return;
      ::kill(::getpid(), SIGKILL);
    }
    std::string message = thrown<CommError>([&] { sum_one(rank); });
    require_text(message, "rank 1");
    require(message.find("has left") != std::string::npos || message.find("is gone") != std::string::npos, message);
  });
  EXPECT_EQ(endings[1], are_threads(one.backend) ? "" : "killed by signal 9");
  endings[1] = "";
  expect_all_fine(endings);
}

// Rank 1 is killed at a random moment of all-reduces that are long enough to be hit in the middle.
void survive_a_kill(const Case& one) {
  for (int trial = 0; trial < std::max(2, 10 * stress_rounds()); ++trial) {
    auto endings = run_ranks(one.backend, one.size, [&](Rank& rank) {
      sum_one(rank);  // after it every rank has joined
      std::thread killer;
      if (rank.rank() == 1)
        killer = std::thread([&] {
          std::this_thread::sleep_for(std::chrono::microseconds(std::random_device()() % 30'000));
          ::kill(::getpid(), SIGKILL);
        });
      std::vector<float> numbers(300'000);
      std::string message = thrown<CommError>([&] {
        for (;;) rank.group->all_reduce({numbers.data(), numbers.size(), DType::f32}, Reduce::mean);
      });
      require_text(message, "rank 1");
      require_text(message, "is gone");
    });
    EXPECT_EQ(endings[1], "killed by signal 9");
    endings[1] = "";
    expect_all_fine(endings);
  }
}

void name_different_calls(const Case& one) {
  auto endings = run_ranks(one.backend, one.size, [](Rank& rank) {
    std::vector<float> numbers(8);
    rank.group->all_reduce({numbers.data(), rank.rank() == 1 ? size_t{7} : size_t{8}, DType::f32}, Reduce::sum);
  });
  bool named = false;
  for (const std::string& ending : endings)
    named |= ending.find("all_reduce (sum) of 7 f32") != std::string::npos &&
             ending.find("all_reduce (sum) of 8 f32") != std::string::npos;
  EXPECT_TRUE(named) << endings[0];
  EXPECT_NE(endings[0].find("same calls in the same order"), std::string::npos) << endings[0];
}

// The shared-memory path under TSan: threads, because TSan sees no other process.
TEST_P(LocalGroup, KeepsTheContract) { keep_the_contract(GetParam()); }
TEST_P(LocalGroupFaults, AWaitThatIsTooLongNamesWhoIsLate) { name_who_is_late(GetParam()); }
TEST_P(LocalGroupFaults, AnAbortReachesAllRanks) { hear_of_an_abort(GetParam()); }
TEST_P(LocalGroupFaults, ARankThatLeavesIsNamed) { name_who_is_gone(GetParam()); }
TEST_P(LocalGroupFaults, DifferentCallsAreNamed) { name_different_calls(GetParam()); }

TEST_P(ShmGroup, KeepsTheContract) { keep_the_contract(GetParam()); }
TEST_P(ShmGroupFaults, AWaitThatIsTooLongNamesWhoIsLate) { name_who_is_late(GetParam()); }
TEST_P(ShmGroupFaults, AnAbortReachesAllRanks) { hear_of_an_abort(GetParam()); }
TEST_P(ShmGroupFaults, ARankThatEndsIsNamed) { name_who_is_gone(GetParam()); }
TEST_P(ShmGroupFaults, AKillAtAnyMomentIsNoticed) { survive_a_kill(GetParam()); }
TEST_P(ShmGroupFaults, DifferentCallsAreNamed) { name_different_calls(GetParam()); }

TEST_P(MessageGroup, KeepsTheContract) { keep_the_contract(GetParam()); }
TEST_P(MessageGroupFaults, AWaitThatIsTooLongNamesWhoIsLate) { name_who_is_late(GetParam()); }
TEST_P(MessageGroupFaults, AnAbortReachesAllRanks) { hear_of_an_abort(GetParam()); }
TEST_P(MessageGroupFaults, ARankThatEndsIsNamed) {
  if (GetParam().backend == Backend::mpi) GTEST_SKIP() << "mpirun ends the whole job";
  name_who_is_gone(GetParam());
}
TEST_P(MessageGroupFaults, AKillAtAnyMomentIsNoticed) {
  if (GetParam().backend == Backend::mpi) GTEST_SKIP() << "mpirun ends the whole job";
  survive_a_kill(GetParam());
}

std::vector<Case> cases_of(std::initializer_list<Backend> backends, const std::vector<int>& sizes) {
  std::vector<Case> cases;
  for (Backend backend : backends)
    for (int size : sizes) cases.push_back({backend, size});
  return cases;
}

std::vector<int> sizes() { return {1, 2, 3, 4, 5, 6, 7, 8}; }
// Connections and mpirun take their time: fewer sizes when nobody asks for stress.
std::vector<int> message_sizes() { return stress_rounds() > 0 ? sizes() : std::vector<int>{1, 2, 3, 4, 8}; }

INSTANTIATE_TEST_SUITE_P(Conformance, LocalGroup,
                         ::testing::ValuesIn(cases_of({Backend::local, Backend::staged}, sizes())), case_name);
INSTANTIATE_TEST_SUITE_P(Conformance, LocalGroupFaults, ::testing::ValuesIn(cases_of({Backend::local}, {2, 5})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Conformance, ShmGroup, ::testing::ValuesIn(cases_of({Backend::shm}, sizes())), case_name);
INSTANTIATE_TEST_SUITE_P(Conformance, ShmGroupFaults, ::testing::ValuesIn(cases_of({Backend::shm}, {2, 5})), case_name);
INSTANTIATE_TEST_SUITE_P(Conformance, MessageGroup,
                         ::testing::ValuesIn(cases_of({Backend::gloo, Backend::mpi}, message_sizes())), case_name);
INSTANTIATE_TEST_SUITE_P(Conformance, MessageGroupFaults,
                         ::testing::ValuesIn(cases_of({Backend::gloo, Backend::mpi}, {3})), case_name);

}  // namespace
}  // namespace bonfire::testing::conformance_test
