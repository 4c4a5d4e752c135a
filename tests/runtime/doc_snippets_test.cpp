// The C++ of docs/coming-from.md compiles, in both languages.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/support/scratch_folder.h"

namespace bonfire::doc_snippets_test {
namespace {

using bonfire::testing::ScratchFolder;

std::vector<std::string> snippets_in(const std::string& page) {
  std::ifstream file(BONFIRE_SOURCE_DIR "/docs/" + page);
  std::vector<std::string> snippets;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (!inside && line == "```cpp") {
      inside = true;
      snippets.emplace_back();
    } else if (inside && line == "```") {
      inside = false;
    } else if (inside) {
      snippets.back() += line + "\n";
    }
  }
  return snippets;
}

// Functions and classes stand by themselves; statements go on with what a reader has by then.
std::string as_program(const std::string& snippet, size_t number) {
  const bool declares =
      snippet.starts_with("void ") || snippet.starts_with("int main") || snippet.starts_with("class ");
  return declares ? fmt::format("namespace snippet_{} {{\n{}}}\n", number, snippet)
                  : fmt::format(
                        "void snippet_{}([[maybe_unused]] models::ResNet& model, [[maybe_unused]] data::DataLoader& "
                        "train,\n[[maybe_unused]] std::shared_ptr<const data::Dataset> dataset, [[maybe_unused]] "
                        "int64_t steps) {{ {{\n{}}} }}\n",
                        number, snippet);
}

TEST(DocSnippets, OfComingFromCompile) {
  for (const char* page : {"coming-from.md", "coming-from.zh.md"}) {
    const std::vector<std::string> snippets = snippets_in(page);
    ASSERT_GE(snippets.size(), 9U) << page;
    std::string text =
        "#include <cstdio>\n#include <iostream>\n#include \"bonfire/bonfire.h\"\nusing namespace bonfire;\n";
    for (size_t i = 0; i < snippets.size(); ++i) text += as_program(snippets[i], i);
    ScratchFolder folder;
    folder.put("page.cpp", text);
    const std::string command = BONFIRE_COMPILER " -std=c++20 -fsyntax-only -I " BONFIRE_SOURCE_DIR "/src " +
                                (folder / "page.cpp").string() + " 2>" + (folder / "said").string();
    EXPECT_EQ(std::system(command.c_str()), 0) << page << "\n" << folder.get("said");
  }
}

}  // namespace
}  // namespace bonfire::doc_snippets_test
