#include "tests/frame/tree_rules.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>

namespace bonfire::frame::tree_rules_test {
namespace {

namespace fs = std::filesystem;

const fs::path kTree = BONFIRE_SOURCE_DIR;

std::string lines_of(const std::vector<std::string>& faults) {
  std::string text;
  for (const std::string& fault : faults) text += fault + "\n";
  return text;
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(SourceTree, FoldersIncludeOnlyFoldersAboveThem) {
  EXPECT_EQ(lines_of(layering_faults(kTree / "src", read_layers(kTree / "src/bonfire/layers.txt"))), "");
}

// cmake/layers.cmake: what breaks the order does not compile.
TEST(SourceTree, TheBuildShowsAFolderOnlyItselfAndThoseAboveIt) {
  std::vector<std::string> above;
  for (const std::string& layer : read_layers(kTree / "src/bonfire/layers.txt")) {
    if (!fs::exists(kTree / "src/bonfire" / layer)) continue;
    above.push_back(layer);
    std::string name = layer;
    std::replace(name.begin(), name.end(), '/', '_');
    const fs::path root = fs::path(BONFIRE_LAYERS_FOLDER) / name / "bonfire";
    if (!fs::exists(root)) continue;  // a part that is not built
    std::vector<std::string> seen;
    for (const auto& entry : fs::recursive_directory_iterator(root))
      if (entry.is_symlink()) seen.push_back(fs::relative(entry.path().parent_path(), root) / entry.path().filename());
    for (std::string& one : seen)
      if (one.starts_with("./")) one.erase(0, 2);
    std::sort(seen.begin(), seen.end());
    std::vector<std::string> expected = above;
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(seen, expected) << layer;
  }
  EXPECT_TRUE(fs::exists(fs::path(BONFIRE_LAYERS_FOLDER) / "train"));
}

TEST(SourceTree, FilesAreShortAndNamedForWhatTheyHold) {
  for (const char* folder : {"src", "tests", "tools", "examples", "bench"})
    if (fs::exists(kTree / folder)) {
      EXPECT_EQ(lines_of(file_faults(kTree / folder)), "") << "in " << folder;
    }
}

TEST(SourceTree, HasNoGlobalStateButWhatIsListed) {
  EXPECT_EQ(lines_of(global_faults(kTree / "src/bonfire", kTree / "tests/frame/globals.txt")), "");
}

// So that its messages have level, time and rank, and can be switched off.
TEST(SourceTree, TheLibrarySpeaksThroughItsLog) {
  const std::regex bare("print[a-z]*\\(stderr|std::cerr|perror\\(");
  for (const auto& entry : fs::recursive_directory_iterator(kTree / "src/bonfire"))
    if (entry.is_regular_file()) {
      EXPECT_FALSE(std::regex_search(text_of(entry.path()), bare))
          << entry.path() << " writes to stderr; use base/log.h";
    }
}

// All that an option does stands in its file of parallel/strategies/. Elsewhere it is read only where a line of this
// list says so.
TEST(SourceTree, AStrategysOptionIsReadInItsOwnFile) {
  const std::map<std::string, std::set<std::string>> elsewhere = {
      {"src/bonfire/parallel/strategy.cpp",
       {"fuse_parameter_memory_size", "fuse_parameter_groups_size"}},  // environment
      {"src/bonfire/train/config/config_rules.cpp",
       {"num_threads", "cpu_threads", "use_local_sgd"}},                      // beside other keys
      {"src/bonfire/train/trainer/trainer_state.h", {"accumulate_steps"}},    // the trainer weighs batches by targets,
      {"src/bonfire/train/trainer/trainer_steps.cpp", {"accumulate_steps"}},  // and reads ahead those of an update
      {"src/bonfire/train/trainer/trainer_trace.cpp", {"accumulate_steps"}},
      {"src/bonfire/train/trainer/trainer_progress.cpp", {"accumulate_steps"}},
      {"tools/inspect.cpp", {"accumulate_steps"}},  // looks at one batch
  };
  const std::regex read(R"(\bstrategy(\.|->)([a-z_]+))"), in_quotes(R"("[^"]*")");
  for (const char* folder : {"src/bonfire", "tools"})
    for (const auto& entry : fs::recursive_directory_iterator(kTree / folder)) {
      const std::string name = fs::relative(entry.path(), kTree);
      if (!entry.is_regular_file() || name.starts_with("src/bonfire/parallel/strategies/")) continue;
      const auto found = elsewhere.find(name);
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);) {
        if (line.find("strategy") == std::string::npos) continue;
        const std::string code = std::regex_replace(line, in_quotes, "");
        const std::string text = code.substr(0, code.find("//"));
        for (std::sregex_iterator at(text.begin(), text.end(), read), end; at != end; ++at) {
          EXPECT_TRUE(found != elsewhere.end() && found->second.contains((*at)[2]))
              << name << " reads strategy." << (*at)[2] << "; see docs/add-a-strategy.md";
        }
      }
    }
}

TEST(SourceTree, LinksInItsPagesLeadToFilesThatAreThere) { EXPECT_EQ(lines_of(link_faults(kTree)), ""); }

TEST(SourceTree, HasItsLicenceAndSaysSo) {
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "Apache License\n                           Version 2.0, January 2004",
                      text_of(kTree / "LICENSE"));
  for (const char* page : {"README.md", "README.zh.md"})
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, "[LICENSE](LICENSE)", text_of(kTree / page));
}

// Where a comment says how to start an example, that is where the release build puts it.
TEST(SourceTree, CommentsOfExamplesNameProgramsThatAreBuilt) {
  int named = 0;
  for (const auto& entry : fs::directory_iterator(kTree / "examples")) {
    const std::string text = text_of(entry.path()), folder = "build/release/examples/";
    for (size_t at = text.find("build/"); at != std::string::npos; at = text.find("build/", at + 1), ++named) {
      ASSERT_EQ(text.compare(at, folder.size(), folder), 0) << entry.path();
      const size_t begin = at + folder.size();
      EXPECT_EQ(text.substr(begin, text.find_first_of(" \n", begin) - begin), entry.path().stem()) << entry.path();
    }
    EXPECT_EQ(text.find("   example_"), std::string::npos) << entry.path();
  }
  EXPECT_GE(named, 4);
}

// A small tree of real files that is gone afterwards.
class TreeRules : public ::testing::Test {
 protected:
  TreeRules() { fs::create_directories(root_); }
  ~TreeRules() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  std::string layering() const {
    return lines_of(layering_faults(root_, {"base", "backend/cpu", "backend/cuda", "nn"}));
  }

  fs::path root_ = fs::temp_directory_path() / ("bonfire_tree_rules_" + std::to_string(getpid()));
};

TEST_F(TreeRules, AGlobalThatIsNotListedIsAFault) {
  write("a.cpp",
        "const int kMost = 3;\nstd::atomic<int> calls{0};\nint more(int x) {\n  static Cache cache;\n"
        "  static const Table kTable = make();\n  thread_local const uint64_t own = 1;\n  int local = 2;\n"
        "  return local;\n}\nnamespace fs = std::filesystem;\nstatic int helper(int x);\n");
  write("list", "# a list\na.cpp cache  why\na.cpp gone\n");
  const std::string faults = lines_of(global_faults(root_, root_ / "list"));
  EXPECT_EQ(faults,
            "a.cpp calls is a global that list does not list: std::atomic<int> calls{0};\n"
            "a.cpp own is a global that list does not list:   thread_local const uint64_t own = 1;\n"
            "a.cpp gone is listed, but not there\n");
}

TEST_F(TreeRules, IncludingDownTheListIsAFault) {
  write("bonfire/base/error.h", "#include <string>\n#include \"bonfire/nn/module.h\"\n");
  EXPECT_EQ(layering(), "bonfire/base/error.h must not include \"bonfire/nn/module.h\"\n");
}

TEST_F(TreeRules, AngleBracketsAndBlanksDoNotHideAFault) {
  write("bonfire/base/error.cpp", "  #  include <bonfire/nn/module.h>  // why not\n");
  EXPECT_EQ(layering(), "bonfire/base/error.cpp must not include <bonfire/nn/module.h>\n");
}

TEST_F(TreeRules, IncludingUpTheListOrTheOwnFolderIsFine) {
  write("bonfire/nn/module.h", "#include \"bonfire/base/error.h\"\n#include \"bonfire/nn/parameter.h\"\n");
  write("bonfire/backend/cuda/gemm.cu", "#include \"bonfire/backend/cpu/gemm/gemm.h\"\n");
  EXPECT_EQ(layering(), "");
}

TEST_F(TreeRules, BackendsAreLayersOfTheirOwn) {
  write("bonfire/backend/cpu/gemm/gemm.cpp", "#include \"bonfire/backend/cuda/stream.h\"\n");
  EXPECT_EQ(layering(), "bonfire/backend/cpu/gemm/gemm.cpp must not include \"bonfire/backend/cuda/stream.h\"\n");
}

TEST_F(TreeRules, TheHeaderForUsersIncludesAllAndIsIncludedByNoFolder) {
  write("bonfire/bonfire.h", "#include \"bonfire/nn/module.h\"\n");
  EXPECT_EQ(layering(), "");
  write("bonfire/nn/module.cpp", "#include \"bonfire/bonfire.h\"\n");
  EXPECT_EQ(layering(), "bonfire/nn/module.cpp must not include \"bonfire/bonfire.h\"\n");
}

TEST_F(TreeRules, AShortIncludePathIsAFault) {
  write("bonfire/base/error.cpp", "#include \"error.h\"\n#include \"../nn/module.h\"\n");
  EXPECT_EQ(layering(),
            "bonfire/base/error.cpp includes \"error.h\" without its full path\n"
            "bonfire/base/error.cpp includes \"../nn/module.h\" without its full path\n");
}

TEST_F(TreeRules, AFolderOutsideTheListIsAFault) {
  write("bonfire/basement/door.h", "");
  EXPECT_EQ(layering(), "bonfire/basement/door.h is in a folder that the list of layers does not name\n");
}

TEST_F(TreeRules, LongFilesAndVagueNamesAreFaults) {
  auto lines = [](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += "\n";
    return text;
  };
  write("a.h", lines(300));
  write("b.cpp", lines(600));
  EXPECT_EQ(lines_of(file_faults(root_)), "");
  write("a.h", lines(301));
  write("b.cpp", lines(601));
  write("utils/c.h", "");
  EXPECT_EQ(lines_of(file_faults(root_)),
            "a.h has 301 lines, more than 300\n"
            "b.cpp has 601 lines, more than 600\n"
            "utils/c.h: 'utils' does not say what is inside\n");
}

TEST_F(TreeRules, ALinkToAFileThatIsNotThereIsAFault) {
  write("docs/guide.md", "[up](../README.md#part), ![picture](images/a.png) and [train](train.md)\n");
  write("docs/images/a.png", "");
  write("README.md", "[guide](docs/guide.md), [here](#part), [there](https://example.org/none)\n");
  EXPECT_EQ(lines_of(link_faults(root_)), "docs/guide.md: there is no train.md\n");
}

TEST_F(TreeRules, LinksInCodeAreNone) {
  write("README.md", "`[a](b.md)`\n```cpp\nauto f = [&](int x) { return x; };\n```\n[c](d.md)\n");
  EXPECT_EQ(lines_of(link_faults(root_)), "README.md: there is no d.md\n");
}

}  // namespace
}  // namespace bonfire::frame::tree_rules_test
