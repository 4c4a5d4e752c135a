#pragma once
// EXPECT_ERROR(statement, Type, text): the statement throws Type with a message that contains `text`. Where a message
// has several parts: expect_mentions(data_error([&] { ... }), {"file", "what to do"}).

#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <string>

#include "bonfire/base/error.h"

#define EXPECT_ERROR(statement, Type, text)                                               \
  do {                                                                                    \
    try {                                                                                 \
      statement;                                                                          \
      ADD_FAILURE() << "no error from: " #statement;                                      \
    } catch (const Type& error) {                                                         \
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what(); \
    } catch (const std::exception& error) {                                               \
      ADD_FAILURE() << "another kind of error from " #statement ": " << error.what();     \
    }                                                                                     \
  } while (false)

namespace bonfire::testing {

// The message of the DataError that the action throws.
inline std::string data_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const DataError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no DataError";
  return {};
}

inline void expect_mentions(const std::string& message, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
}

}  // namespace bonfire::testing
