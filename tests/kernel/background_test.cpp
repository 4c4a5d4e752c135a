#include "bonfire/kernel/background.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <latch>

#include "bonfire/graph/step_context.h"

namespace bonfire::background_test {
namespace {

Line communicator(int number, Axis axis = Axis::data) {
  return {.axis = axis, .kind = Line::Kind::collective, .number = number};
}

TEST(QueueBackground, LinesRunSideBySide) {
  const Line lines[] = {communicator(0),
                        communicator(1),
                        communicator(0, Axis::tensor),
                        {.axis = Axis::data, .kind = Line::Kind::pack, .number = 0},
                        {.axis = Axis::data, .kind = Line::Kind::send, .number = 0},
                        {.axis = Axis::data, .kind = Line::Kind::receive, .number = 0}};
  std::latch all(std::size(lines));
  Background background;
  for (const Line& line : lines)
    background.start(line, {}, [&] { all.arrive_and_wait(); });  // one alone would never end
  background.wait_for_all();
  EXPECT_TRUE(all.try_wait());
}

TEST(QueueBackground, ALineRunsInOrder) {
  std::vector<int> order[2];
  Background background;
  for (int i = 0; i < 100; ++i) background.start(communicator(i % 2), {}, [&, i] { order[i % 2].push_back(i); });
  background.wait_for_all();
  for (int line : {0, 1})
    for (int i = 0; i < 50; ++i) ASSERT_EQ(order[line].at(static_cast<size_t>(i)), 2 * i + line);
}

TEST(QueueBackground, CollectivesOfAnAxisBeginAfterItsAgreementAndOthersNeedNot) {
  for (int trial = 0; trial < 100; ++trial) {
    std::atomic<bool> agreed{false};
    std::atomic<int> late{0};
    std::latch both(2);
    Background background;
    background.start(
        communicator(0), {},
        [&] {
          both.wait();  // what waits for no agreement of this axis
          agreed = true;
        },
        true);
    for (int number : {2, 1, 0}) background.start(communicator(number), {}, [&] { late += agreed ? 1 : 0; });
    background.start(communicator(0, Axis::tensor), {}, [&] { both.count_down(); });
    background.start({.axis = Axis::data, .kind = Line::Kind::receive, .number = 1}, {}, [&] { both.count_down(); });
    background.wait_for_all();
    ASSERT_EQ(late, 3);
  }
}

TEST(QueueBackground, NobodyWaitsForWhatIsPosted) {
  std::promise<void> go;
  std::atomic<int> sent{0};
  {
    Background background;
    const Line line{.axis = Axis::pipeline, .kind = Line::Kind::send, .number = 1};
    background.post(line, [&, gone = go.get_future().share()] {
      gone.wait();
      ++sent;
    });
    background.post(line, [&] { sent += sent == 1 ? 1 : 100; });
    EXPECT_TRUE(background.idle());
    background.wait_for_all();
    background.start(communicator(0), {}, [] { throw std::runtime_error("a peer is gone"); });
    EXPECT_THROW(background.wait_for_all(), std::runtime_error);
    background.finish_after_failure();
    EXPECT_EQ(sent, 0);
    go.set_value();
  }  // whoever ends the queue does wait
  EXPECT_EQ(sent, 2);
}

TEST(QueueBackground, ALateFailureIsTakenOnce) {
  Background background;
  const Line line{.axis = Axis::pipeline, .kind = Line::Kind::send, .number = 1};
  std::promise<void> after;
  background.post(line, [] { throw std::runtime_error("nobody received it"); });
  background.post(line, [&] { after.set_value(); });
  after.get_future().wait();
  EXPECT_TRUE(background.idle());
  const std::exception_ptr late = background.take_late_failure();
  ASSERT_TRUE(late);
  EXPECT_THROW(std::rethrow_exception(late), std::runtime_error);
  EXPECT_FALSE(background.take_late_failure());
}

struct NoGroups final : StepGroups {};

// A device outlives jobs: threads that are ranks of one job after another have it.
TEST(QueueBackground, ALateFailureIsOfItsJobAlone) {
  Background background;
  const Line line{.axis = Axis::pipeline, .kind = Line::Kind::send, .number = 1};
  auto send = [&](const std::shared_ptr<StepGroups>& of, const char* why) {
    std::promise<void> after;
    background.post(
        line, [why] { throw std::runtime_error(why); }, of);
    background.post(line, [&] { after.set_value(); });
    after.get_future().wait();
  };
  auto taken = [&](const std::shared_ptr<StepGroups>& of) -> std::string {
    try {
      if (const std::exception_ptr late = background.take_late_failure(of)) std::rethrow_exception(late);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  };
  auto earlier = std::make_shared<NoGroups>();
  const auto job = std::make_shared<NoGroups>();
  send(earlier, "of the job before");
  EXPECT_EQ(taken(job), "");
  EXPECT_EQ(taken(nullptr), "");
  earlier.reset();
  EXPECT_EQ(taken(job), "");
  send(job, "its own");
  send(job, "a second one");
  EXPECT_EQ(taken(job), "its own");
  EXPECT_EQ(taken(job), "");
}

// The queue tells the others' groups, which ends what they wait for, and goes on when nothing is running any more.
TEST(QueueBackground, AFailureIsToldWhileOtherLinesStillRun) {
  Background background;
  std::promise<void> begun, told;
  std::atomic<bool> ended{false}, begun_later{false};
  background.start(communicator(0), {}, [&] {
    begun.set_value();
    told.get_future().wait();
    ended = true;
  });
  begun.get_future().wait();
  background.start(communicator(1), {}, [] { throw std::runtime_error("a peer is gone"); });
  try {
    background.wait_for_all();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "a peer is gone");
  }
  EXPECT_FALSE(ended);
  told.set_value();
  background.finish_after_failure();
  EXPECT_TRUE(ended);
  EXPECT_TRUE(background.idle());
  background.start(communicator(0), {}, [&] { begun_later = true; });
  background.wait_for_all();
  EXPECT_TRUE(begun_later);
}

}  // namespace
}  // namespace bonfire::background_test
