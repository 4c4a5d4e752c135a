#include "tests/frame/object_globals.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <memory>

#include "tests/support/scratch_folder.h"

namespace bonfire::frame::object_globals_test {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::ScratchFolder;

std::string lines_of(const std::vector<std::string>& faults) {
  std::string text;
  for (const std::string& fault : faults) text += fault + "\n";
  return text;
}

#ifdef BONFIRE_OBJECTS
std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::string text;
  std::array<char, 1 << 16> piece{};
  for (size_t count = 0; (count = std::fread(piece.data(), 1, piece.size(), pipe.get())) > 0;)
    text.append(piece.data(), count);
  return text;
}
#endif

// Whatever form a declaration has: the compiler has found them all.
TEST(ObjectGlobals, AreListedOrConstant) {
#ifdef BONFIRE_OBJECTS
  std::ifstream list(BONFIRE_OBJECTS);
  std::string command = BONFIRE_OBJDUMP " -t -C";
  size_t objects = 0;
  for (std::string object; std::getline(list, object); ++objects) command += " '" + object + "'";
  EXPECT_GT(objects, 20U);
  const std::string symbols = output_of(command);
  EXPECT_NE(symbols.find("op_registry()::registry"), std::string::npos);
  const fs::path tree = BONFIRE_SOURCE_DIR;
  EXPECT_EQ(lines_of(object_global_faults(symbols, BONFIRE_BUILD_FOLDER, tree / "src/bonfire",
                                          tree / "tests/frame/globals.txt")),
            "");
#else
  GTEST_SKIP() << "a build with sanitizers, or without objdump";
#endif
}

// As objdump prints them, of an object of one source and of one of several.
constexpr const char* kSymbols =
    "CMakeFiles/bonfire_graph.dir/src/bonfire/graph/a.cpp.o:     file format elf64-x86-64\n\n"
    "SYMBOL TABLE:\n"
    "0000000000000000 l    d  .bss\t0000000000000000 .bss\n"
    "0000000000000000 l     O .bss\t0000000000000008 bonfire::(anonymous namespace)::calls\n"
    "0000000000000010 l     O .bss\t0000000000000018 bonfire::table_of(int)::table\n"
    "0000000000000028 l     O .bss\t0000000000000008 guard variable for bonfire::table_of(int)::table\n"
    "0000000000000030 l     O .bss\t0000000000000008 bonfire::(anonymous namespace)::kMost[abi:cxx11]\n"
    "0000000000000000 l     O .rodata\t0000000000000008 bonfire::(anonymous namespace)::fixed\n"
    "0000000000000000 l     O .data.rel.ro.local\t0000000000000008 bonfire::(anonymous namespace)::names\n"
    "0000000000000000 l       .tbss\t0000000000000008 bonfire::own()::self\n"
    "0000000000000000  w    O .bss._ZN7\t0000000000000008 .hidden bonfire::Numbers<int>::next()::last\n"
    "CMakeFiles/bonfire_graph.dir/together/graph/graph_2.cpp.o:     file format elf64-x86-64\n\n"
    "0000000000000000 l     O .data\t0000000000000008 bonfire::b()::text\n"
    "0000000000000000 l     O .data\t0000000000000008 bonfire::c()::listed\n";

TEST(ObjectGlobals, OneThatIsNeitherConstantNorListedIsAFault) {
  ScratchFolder folder;
  for (const char* name : {"src/graph", "build/together/graph"}) fs::create_directories(folder / name);
  folder.put("src/graph/a.cpp",
             "std::map<int,\n         int> calls;\nvoid use(const int& calls);\n// const int calls\n"
             "const Table& table_of(int n) {\n  static const Table\n      table = make(n);\n  return table;\n}\n"
             "const std::string kMost = \"a\";\n");
  folder.put("src/graph/b.cpp", "void b() { static const char* text = \"\"; }\n");
  folder.put("src/graph/c.cpp", "void c() { static int listed = 1; }\n");
  folder.put("src/graph/numbers.h", "static int last = 0;\n");
  folder.put("build/together/graph/graph_2.cpp",
             "#include \"/tree/src/bonfire/graph/b.cpp\"\n#include \"/tree/src/bonfire/graph/c.cpp\"\n");
  const fs::path list = folder.put("list", "# a list\ngraph/c.cpp listed  why\ngraph/numbers.h last\n");
  EXPECT_EQ(
      lines_of(object_global_faults(kSymbols, folder / "build", folder / "src", list)),
      "CMakeFiles/bonfire_graph.dir/together/graph/graph_2.cpp.o: bonfire::b()::text can be written (.data), is not "
      "const, and list does not list it\n"
      "graph/a.cpp: bonfire::(anonymous namespace)::calls can be written (.bss), is not const, and list does not "
      "list it\n"
      "graph/a.cpp: bonfire::own()::self can be written (.tbss), is not const, and list does not list it\n");
}

}  // namespace
}  // namespace bonfire::frame::object_globals_test
