#pragma once
// EXPECT_ERROR(statement, Type, text): the statement throws Type with a message that contains `text`.

#include <gtest/gtest.h>

#include <string>

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
