// Random programs: traced, compiled and op by op they give what a reference in f64 gives, and what PyTorch gave.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/golden/golden.h"
#include "tests/property/program.h"
#include "tests/property/reference.h"
#include "tests/property/run.h"

namespace bonfire::property {
namespace {

// BONFIRE_PROPERTY_SEEDS=10000 looks at more programs, BONFIRE_PROPERTY_FIRST=4711 begins with that one.
uint64_t setting(const char* name, uint64_t usual) {
  const char* text = std::getenv(name);
  return text == nullptr ? usual : std::strtoull(text, nullptr, 10);
}

// How far rounding to f32 may take each of the answers.
Answer tolerances(const Program& program, const Answer& exact) {
  Answer allowed(exact.size());
  for (uint64_t sample = 1; sample <= 3; ++sample) {
    const Answer disturbed = run_reference(program, 1.2e-7, sample);
    for (size_t i = 0; i < exact.size(); ++i) allowed[i] = std::max(allowed[i], std::abs(disturbed[i] - exact[i]));
  }
  for (size_t i = 0; i < exact.size(); ++i) allowed[i] = 50 * allowed[i] + 3e-5 * (1 + std::abs(exact[i]));
  return allowed;
}

::testing::AssertionResult same(const Answer& found, const Answer& expected, const Answer& allowed) {
  if (found.size() != expected.size())
    return ::testing::AssertionFailure() << found.size() << " answers instead of " << expected.size();
  for (size_t i = 0; i < found.size(); ++i)
    if (!(std::abs(found[i] - expected[i]) <= allowed[i]))
      return ::testing::AssertionFailure() << "answer " << i << " of " << found.size() << " is " << found[i]
                                           << ", expected " << expected[i] << " to " << allowed[i];
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult runs_right(const Program& program, How how, const Answer& expected, const Answer& allowed) {
  try {
    return same(run(program, how), expected, allowed);
  } catch (const std::exception& error) {
    return ::testing::AssertionFailure() << "an error: " << error.what();
  }
}

TEST(RandomPrograms, GiveWhatTheReferenceGivesHoweverTheyRun) {
  const uint64_t first = setting("BONFIRE_PROPERTY_FIRST", 1), count = setting("BONFIRE_PROPERTY_SEEDS", 150);
  const std::pair<How, const char*> ways[] = {
      {How::traced, "traced"}, {How::compiled, "compiled"}, {How::op_by_op, "op by op"}};
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Program program = draw(seed);
    const Answer expected = run_reference(program), allowed = tolerances(program, expected);
    for (const auto& [how, name] : ways)
      ASSERT_TRUE(runs_right(program, how, expected, allowed)) << "seed " << seed << ", " << name << ":\n"
                                                               << to_text(program);
  }
}

// tests/golden/generate_programs.py reads what BONFIRE_PROPERTY_WRITE=FILE writes here, and writes programs.json.
TEST(RandomPrograms, GiveWhatPyTorchGave) {
  constexpr uint64_t kPrograms = 300;
  if (const char* file = std::getenv("BONFIRE_PROPERTY_WRITE")) {
    std::ofstream out(file);
    for (uint64_t seed = 1; seed <= kPrograms; ++seed) out << to_text(draw(seed));
    GTEST_SKIP() << "the programs were written";
  }
  const nlohmann::json answers = golden::load_json("programs");
  ASSERT_EQ(answers.size(), kPrograms);
  for (uint64_t seed = 1; seed <= kPrograms; ++seed) {
    const Program program = draw(seed);
    const auto expected = answers[seed - 1].get<Answer>();
    ASSERT_TRUE(same(run_reference(program), expected, Answer(expected.size(), 1e-7)))
        << "seed " << seed << ": the reference itself\n"
        << to_text(program);
    ASSERT_TRUE(runs_right(program, How::compiled, expected, tolerances(program, expected))) << "seed " << seed << ":\n"
                                                                                             << to_text(program);
  }
}

}  // namespace
}  // namespace bonfire::property
