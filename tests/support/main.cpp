// Starts every test program with the settings that tests are written for, unless the caller says otherwise.
#include <gtest/gtest.h>

#include <cstdlib>

int main(int argc, char** argv) {
  setenv("BONFIRE_TUNE", "off", 0);  // the same kernels on every run
  setenv("BONFIRE_VERIFY", "1", 0);  // graphs are looked over after each pass
  // For this process it is too late, which __tsan_default_options below tells; these are for those that tests start.
  setenv("TSAN_OPTIONS", "ignore_noninstrumented_modules=1", 0);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

// Libraries that are not instrumented (gRPC, oneDNN) order their memory in ways that TSan cannot see.
// NOLINTNEXTLINE(bugprone-reserved-identifier, readability-identifier-naming)
extern "C" const char* __tsan_default_options() { return "ignore_noninstrumented_modules=1"; }
