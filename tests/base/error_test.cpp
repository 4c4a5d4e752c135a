#include "bonfire/base/error.h"

#include <gtest/gtest.h>

#include <string>

namespace bonfire::error_test {
namespace {

TEST(Error, CarriesItsKindAndTheFormattedMessage) {
  try {
    throw_error<ShapeError>("[conv2d] input has {} channels, weight expects {}", 3, 1);
    FAIL() << "nothing was thrown";
  } catch (const ShapeError& error) {
    EXPECT_STREQ(error.what(), "[conv2d] input has 3 channels, weight expects 1");
  }
}

TEST(Error, EveryKindIsCaughtAsError) {
  EXPECT_THROW(throw_error<ConfigError>("x"), Error);
  EXPECT_THROW(throw_error<DeviceError>("x"), Error);
  EXPECT_THROW(throw_error<CommError>("x"), Error);
  EXPECT_THROW(throw_error<TimeoutError>("x"), Error);
  EXPECT_THROW(throw_error<DataError>("x"), Error);
  EXPECT_THROW(throw_error<GraphError>("x"), Error);
}

TEST(Check, NamesFileConditionAndTextAndIsNoUserError) {
  int nodes = 3;
  try {
    BONFIRE_CHECK(nodes == 4, "{} nodes", nodes);
    FAIL() << "nothing was thrown";
  } catch (const Error&) {
    FAIL() << "a bug must not look like bad input";
  } catch (const std::logic_error& error) {
    std::string text = error.what();
    EXPECT_NE(text.find("error_test.cpp:"), std::string::npos) << text;
    EXPECT_NE(text.find("nodes == 4: 3 nodes"), std::string::npos) << text;
  }
}

TEST(Check, EvaluatesItsTextOnlyWhenItFails) {
  int asked = 0;
  BONFIRE_CHECK(true, "{}", ++asked);
  BONFIRE_CHECK(true);
  EXPECT_EQ(asked, 0);
  EXPECT_THROW(BONFIRE_CHECK(false), std::logic_error);
}

}  // namespace
}  // namespace bonfire::error_test
