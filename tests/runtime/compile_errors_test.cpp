// Functions that compile() cannot take are refused by the C++ compiler, in words.

#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>

#include "tests/support/scratch_folder.h"

namespace bonfire::compile_errors_test {
namespace {

using bonfire::testing::ScratchFolder;

// What the C++ compiler says of compile(FUNCTION); empty: nothing.
std::string said_of(const std::string& function) {
  ScratchFolder folder;
  folder.put("step.cpp",
             "#include \"bonfire/graph/variable.h\"\n#include \"bonfire/runtime/compile.h\"\nusing namespace "
             "bonfire;\nvoid use() { auto step = compile(" +
                 function + "); (void)sizeof(step); }\n");
  const std::string command = BONFIRE_COMPILER " -std=c++20 -fsyntax-only -I " BONFIRE_SOURCE_DIR "/src " +
                              (folder / "step.cpp").string() + " 2>" + (folder / "said").string();
  const bool compiles = std::system(command.c_str()) == 0;
  const std::string said = folder.get("said");
  EXPECT_EQ(compiles, said.find("error") == std::string::npos) << said;
  return said;
}

TEST(CompileErrors, FunctionsOfTensorsAreTaken) {
  for (const char* function : {"[](const Tensor& x) { return x; }", "[](Tensor x) { return std::vector<Tensor>{x}; }",
                               "[](const Tensor&, const Tensor&) {}", "[]() { return Tensor(); }",
                               "[n = 0](const Tensor& x) mutable { ++n; return x; }"})
    EXPECT_EQ(said_of(function), "") << function;
}

TEST(CompileErrors, SayWhatTheFunctionMustReturnOrTake) {
  const std::pair<const char*, const char*> cases[] = {
      {"[](const Tensor& x) { return x.item(); }", "must return a Tensor, a std::vector<Tensor> or nothing"},
      {"[](const Tensor& x) { return std::pair(x, x); }", "must return a Tensor, a std::vector<Tensor> or nothing"},
      {"[](const Tensor& x) -> const Tensor& { return x; }", "must return a Tensor, a std::vector<Tensor> or nothing"},
      {"[](double) { return Tensor(); }", "must take Tensors"},
      {"[](const auto& x) { return x; }",
       "must be a lambda (or an object with one operator()) whose parameters are Tensors"},
      {"3", "must be a lambda"}};
  for (const auto& [function, expected] : cases) {
    const std::string said = said_of(function);
    EXPECT_NE(said.find(expected), std::string::npos) << function << ": " << said;
    // One error and what it notes, not a page of templates.
    const std::regex error("error:");
    EXPECT_LE(std::distance(std::sregex_iterator(said.begin(), said.end(), error), std::sregex_iterator()), 2) << said;
  }
}

}  // namespace
}  // namespace bonfire::compile_errors_test
