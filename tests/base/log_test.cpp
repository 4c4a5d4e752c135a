#include "bonfire/base/log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <regex>
#include <string>
#include <thread>
#include <vector>

namespace bonfire::base::log_test {
namespace {

std::string said(const std::function<void()>& body) {
  ::testing::internal::CaptureStderr();
  body();
  return ::testing::internal::GetCapturedStderr();
}

class Log : public ::testing::Test {
 protected:
  ~Log() override {
    set_log_level(before_);
    set_log_rank(-1);
  }
  LogLevel before_ = log_level();
};

void say_all() {
  log_debug("a {}", 1);
  log_info("b {}", 2);
  log_warning("c {}", 3);
  log_error("d {}", 4);
}

TEST_F(Log, HasALineWithTimeAndLevelForEachMessage) {
  set_log_level(LogLevel::debug);
  const std::string lines = said(say_all), time = "\\[[0-2][0-9]:[0-5][0-9]:[0-6][0-9] ";
  EXPECT_TRUE(std::regex_match(lines, std::regex(time + "debug\\] a 1\n" + time + "info\\] b 2\n" + time +
                                                 "warning\\] c 3\n" + time + "error\\] d 4\n")))
      << lines;
}

TEST_F(Log, LeavesOutWhatIsBelowItsLevel) {
  const size_t lines_from[] = {4, 3, 2, 1, 0};
  for (size_t i = 0; i < 5; ++i) {
    const LogLevel level = parse_log_level(kLogLevels[i]).value();
    set_log_level(level);
    const std::string lines = said(say_all);
    EXPECT_EQ(static_cast<size_t>(std::count(lines.begin(), lines.end(), '\n')), lines_from[i]) << kLogLevels[i];
  }
}

TEST_F(Log, NamesTheRank) {
  set_log_rank(3);
  const std::string line = said([] { log_error("lost"); });
  EXPECT_NE(line.find(" error, rank 3] lost\n"), std::string::npos) << line;
}

TEST_F(Log, LinesOfSeveralThreadsDoNotMix) {
  const std::string lines = said([] {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([i] {
        for (int line = 0; line < 100; ++line) log_warning("{}", std::string(200, static_cast<char>('a' + i)));
      });
    for (std::thread& thread : threads) thread.join();
  });
  const std::regex whole("\\[..:..:.. warning\\] (a{200}|b{200}|c{200}|d{200})");
  size_t count = 0;
  for (size_t begin = 0, end; (end = lines.find('\n', begin)) != std::string::npos; begin = end + 1, ++count)
    EXPECT_TRUE(std::regex_match(lines.substr(begin, end - begin), whole)) << lines.substr(begin, end - begin);
  EXPECT_EQ(count, 400U);
}

TEST(LogLevels, AreReadByName) {
  EXPECT_EQ(parse_log_level("warning"), LogLevel::warning);
  EXPECT_EQ(parse_log_level("off"), LogLevel::off);
  EXPECT_FALSE(parse_log_level("loud").has_value());
  EXPECT_FALSE(parse_log_level("").has_value());
}

}  // namespace
}  // namespace bonfire::base::log_test
