// Ranks that are about to make different collectives are told which, for each kind of op.
#include <gtest/gtest.h>

#include "bonfire/base/error.h"
#include "bonfire/bonfire.h"
#include "bonfire/comm/agreement.h"
#include "bonfire/comm/collective_op.h"
#include "bonfire/comm/collectives.h"
#include "bonfire/graph/all_ops.h"
#include "bonfire/kernel/kernel.h"
#include "tests/comm/ranks.h"
#include "tests/support/expect_error.h"

namespace bonfire::testing::collective_mismatch_test {
namespace {

using comm::Reduce;

constexpr Axis kAxis = Axis::data;

struct Mismatch {
  const char* name;
  std::function<Tensor(const Tensor&x)> on_0, on_1;
  const char *told_of_0, *told_of_1;
};

std::vector<Mismatch> mismatches() {
  return {
      {"kind of reduction", [](const Tensor& x) { return comm::all_reduce(x, kAxis, Reduce::sum); },
       [](const Tensor& x) { return comm::all_reduce(x, kAxis, Reduce::max); }, "sum of a value (f32 [4, 2])",
       "max of a value (f32 [4, 2])"},
      {"shape", [](const Tensor& x) { return comm::all_reduce(x, kAxis); },
       [](const Tensor& x) { return comm::all_reduce(reshape(x, {8}), kAxis); }, "sum of a value (f32 [4, 2])",
       "sum of a value (f32 [8])"},
      {"dtype", [](const Tensor& x) { return comm::broadcast(x, kAxis); },
       [](const Tensor& x) { return comm::broadcast(cast(x, DType::f64), kAxis); },
       "broadcast from rank 0 of a value (f32 [4, 2])", "broadcast from rank 0 of a value (f64 [4, 2])"},
      {"dimension", [](const Tensor& x) { return comm::all_gather(x, kAxis, 0); },
       [](const Tensor& x) { return comm::all_gather(x, kAxis, 1); },
       "gather along dimension 0 of a value (f32 [4, 2])", "gather along dimension 1 of a value (f32 [4, 2])"},
      {"op", [](const Tensor& x) { return comm::reduce_scatter(x, kAxis, 0); },
       [](const Tensor& x) { return comm::all_gather(x, kAxis, 0); },
       "scattered sum along dimension 0 of a value (f32 [4, 2])", "gather along dimension 0 of a value (f32 [4, 2])"},
      {"root", [](const Tensor& x) { return comm::broadcast(x, kAxis, 0); },
       [](const Tensor& x) { return comm::broadcast(x, kAxis, 1); }, "broadcast from rank 0 of a value (f32 [4, 2])",
       "broadcast from rank 1 of a value (f32 [4, 2])"},
      {"exchange", [](const Tensor& x) { return comm::all_to_all(x, kAxis, 0, 1); },
       [](const Tensor& x) { return comm::all_to_all(x, kAxis, 1, 0); },
       "exchange from dimension 0 to 1 of a value (f32 [4, 2])",
       "exchange from dimension 1 to 0 of a value (f32 [4, 2])"},
  };
}

TEST(CollectiveMismatch, IsNamedForEachKindOfOp) {
  for (const Mismatch& one : mismatches()) {
    SCOPED_TRACE(one.name);
    const auto endings = run_ranks(Backend::local, 2, [&](Rank& rank) {
      fleet::join(rank.group);
      const Tensor x = ones({4, 2}, DType::f32, {DeviceType::cpu, static_cast<int16_t>(rank.rank())});
      (rank.rank() == 0 ? one.on_0 : one.on_1)(x).to_vector<float>();
    });
    for (const std::string& ending : endings) {
      const std::string expected = std::string("this step's collectives differ: rank 0 takes part in the ") +
                                   one.told_of_0 + ", rank 1 does not; rank 1 takes part in the " + one.told_of_1 +
                                   ", rank 0 does not";
      EXPECT_NE(ending.find(expected), std::string::npos) << ending;
    }
  }
}

TEST(CollectiveMismatch, AnotherOrderIsNamed) {
  const auto endings = run_ranks(Backend::local, 2, [&](Rank& rank) {
    fleet::join(rank.group);
    const Tensor x = ones({4, 2}, DType::f32, {DeviceType::cpu, static_cast<int16_t>(rank.rank())});
    const Tensor first = rank.rank() == 0 ? comm::all_gather(x, kAxis) : comm::broadcast(x, kAxis);
    const Tensor second = rank.rank() == 0 ? comm::broadcast(x, kAxis) : comm::all_gather(x, kAxis);
    (sum(first) + sum(second)).item();
  });
  for (const std::string& ending : endings)
    EXPECT_NE(ending.find("where rank 0 has the gather along dimension 0 of a value (f32 [4, 2]) in collective 0, rank "
                          "1 has the broadcast from rank 0 of a value (f32 [4, 2]) in collective 0"),
              std::string::npos)
        << ending;
}

TEST(CollectiveMismatch, EveryCollectiveButMessagesSaysWhatRanksCompare) {
  const Attributes any{{"axis", 0}, {"reduce", 0}, {"dim", 0}, {"root", 0}, {"split", 0}, {"join", 1}};
  std::vector<std::string> compared, by_tag;
  for (const Op* op : all_ops())
    if (op->has(Trait::collective) && !op->name.ends_with("_for_test"))
      (comm::deed_of(*op, any).empty() ? by_tag : compared).push_back(op->name);
  EXPECT_EQ(by_tag, (std::vector<std::string>{"receive", "send"}));
  EXPECT_GE(compared.size(), 5U);
}

TEST(CollectiveMismatch, ACollectiveWithoutWordsForItIsAnErrorWhereItWouldGoUnseen) {
  static const Op& forgotten = register_op({.name = "forgotten_for_test",
                                            .infer = [](const InferContext& c) { return OutputSpecs{c.input(0)}; },
                                            .traits = Trait::collective | Trait::stateful});
  static const bool registered =
      register_kernel("forgotten_for_test", DeviceType::cpu, [](const KernelRequest& request) {
        std::vector<Candidate> list = one_candidate(request, [](const bonfire::Run&) {});
        list[0].line = Line{.axis = kAxis, .kind = Line::Kind::collective, .number = 0};
        return list;
      });
  EXPECT_TRUE(registered);
  EXPECT_ERROR(trace_op(forgotten, {ones({1})}).item(), GraphError,
               "[forgotten_for_test] ranks do not know what to compare of it");
}

// The messages of a schedule: three ranks in a row, with activations on and gradients back.
std::vector<comm::ScheduledMessage> schedule(int rank, int ranks) {
  std::vector<comm::ScheduledMessage> list;
  for (int batch = 0; batch < 2; ++batch) {
    if (rank > 0) list.push_back({false, rank - 1, fmt::format("activations {}", batch)});
    if (rank + 1 < ranks) list.push_back({true, rank + 1, fmt::format("activations {}", batch)});
  }
  for (int batch = 0; batch < 2; ++batch) {
    if (rank + 1 < ranks) list.push_back({false, rank + 1, fmt::format("gradients {}", batch)});
    if (rank > 0) list.push_back({true, rank - 1, fmt::format("gradients {}", batch)});
  }
  return list;
}

std::string told(comm::Group& group, const std::vector<comm::ScheduledMessage>& messages) {
  try {
    comm::agree_on_messages(group, messages);
  } catch (const CommError& error) {
    return error.what();
  }
  return "";
}

TEST(ScheduleAgreement, NamesTheFirstMessageThatDiffers) {
  for (Backend backend : {Backend::local, Backend::shm})
    expect_all_fine(run_ranks(backend, 3, [](Rank& rank) {
      const auto usual = schedule(rank.rank(), rank.size());
      require(told(*rank.group, usual).empty(), "a schedule that fits");
      auto swapped = usual;
      if (rank.rank() == 1) std::swap(swapped[0].what, swapped[2].what);
      std::string message = told(*rank.group, swapped);
      require(message ==
                  "the schedules of the ranks differ: of message 1 from rank 0 to rank 1, the first sends "
                  "activations 0 and the second expects activations 1",
              message);
      auto shorter = usual;
      if (rank.rank() == 2) shorter.pop_back();
      message = told(*rank.group, shorter);
      require(message ==
                  "the schedules of the ranks differ: of message 2 from rank 2 to rank 1, the first sends "
                  "nothing and the second expects gradients 1",
              message);
    }));
}

}  // namespace
}  // namespace bonfire::testing::collective_mismatch_test
