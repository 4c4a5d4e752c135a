// Functions that compile() cannot take are refused by the C++ compiler, in words.

#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>

#include "tests/support/scratch_folder.h"

namespace bonfire::compile_errors_test {
namespace {

using bonfire::testing::ScratchFolder;

// What the C++ compiler says of compile(FUNCTION), for each of them; empty: nothing.
std::string said_of(const std::vector<std::string>& functions) {
  ScratchFolder folder;
  std::string text =
      "#include \"bonfire/graph/variable.h\"\n#include \"bonfire/runtime/compile.h\"\nusing namespace bonfire;\n";
  for (size_t i = 0; i < functions.size(); ++i)
    text += fmt::format("void use{}() {{ auto step = compile({}); (void)sizeof(step); }}\n", i, functions[i]);
  folder.put("step.cpp", text);
  const std::string command = BONFIRE_COMPILER " -std=c++20 -fsyntax-only -I " BONFIRE_SOURCE_DIR "/src " +
                              (folder / "step.cpp").string() + " 2>" + (folder / "said").string();
  const bool compiles = std::system(command.c_str()) == 0;
  const std::string said = folder.get("said");
  EXPECT_EQ(compiles, said.find("error") == std::string::npos) << said;
  return said;
}

TEST(CompileErrors, FunctionsOfTensorsAreTaken) {
  EXPECT_EQ(said_of({"[](const Tensor& x) { return x; }", "[](Tensor x) { return std::vector<Tensor>{x}; }",
                     "[](const Tensor&, const Tensor&) {}", "[]() { return Tensor(); }",
                     "[n = 0](const Tensor& x) mutable { ++n; return x; }"}),
            "");
}

TEST(CompileErrors, SayWhatTheFunctionMustReturnOrTake) {
  const std::string said =
      said_of({"[](const Tensor& x) { return x.item(); }", "[](const Tensor& x) { return std::pair(x, x); }",
               "[](const Tensor& x) -> const Tensor& { return x; }", "[](double) { return Tensor(); }",
               "[](const auto& x) { return x; }", "3"});
  auto times = [&](const std::string& text) {
    const std::regex pattern(text);
    return std::distance(std::sregex_iterator(said.begin(), said.end(), pattern), std::sregex_iterator());
  };
  EXPECT_EQ(times("error: static assertion failed.*must return a Tensor, a std::vector<Tensor> or nothing"), 3) << said;
  EXPECT_EQ(times("error: static assertion failed.*must take Tensors"), 1) << said;
  EXPECT_EQ(times("error: static assertion failed.*must be a lambda .*whose parameters are Tensors, not auto"), 2)
      << said;
  // Each is that and `auto step` without a value, not a page of templates.
  EXPECT_LE(times("error:"), 12) << said;
}

}  // namespace
}  // namespace bonfire::compile_errors_test
