#include "tests/frame/object_globals.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

namespace bonfire::frame {

namespace fs = std::filesystem;

namespace {

std::string text_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::string without_comments(const std::string& text) {
  std::string rest;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) rest += line.substr(0, line.find("//")) + "\n";
  return rest;
}

bool is_of_a_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

bool is_word_at(const std::string& text, size_t at, const std::string& word) {
  return text.compare(at, word.size(), word) == 0 && (at == 0 || !is_of_a_word(text[at - 1])) &&
         (at + word.size() >= text.size() || !is_of_a_word(text[at + word.size()]));
}

bool has_word(const std::string& text, const std::string& word) {
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
    if (is_word_at(text, at, word)) return true;
  return false;
}

// Where the statement begins that declares what stands at `name`; npos in a list of parameters.
size_t statement_begin(const std::string& text, size_t name) {
  int closed = 0;
  for (size_t at = name; at-- > 0;) {
    const char c = text[at];
    if (c == ';' || c == '{' || c == '}') return text.find_first_not_of(" \n", at + 1);
    closed += c == ')' ? 1 : c == '(' ? -1 : 0;
    if (closed < 0) return std::string::npos;
  }
  return 0;
}

// `const T name`, `T* const name`, `const T& name`, of a variable that is there for good.
bool declares_constant(const std::string& text, size_t name) {
  const size_t begin = statement_begin(text, name);
  if (begin == std::string::npos || begin > name) return false;
  const std::string words = text.substr(begin, name - begin);
  const size_t pointer = words.rfind('*');
  const bool is_const =
      has_word(words, "constexpr") || has_word(pointer == std::string::npos ? words : words.substr(pointer), "const");
  const bool is_kept = has_word(words, "static") || begin == 0 || text[begin - 1] == '\n';
  return is_const && is_kept;
}

bool has_constant(const std::string& text, const std::string& name) {
  for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1))
    if (is_word_at(text, at, name) && declares_constant(text, at)) return true;
  return false;
}

// Under src/bonfire, of what an object is compiled: "CMakeFiles/bonfire_graph.dir/src/bonfire/graph/op.cpp.o".
std::set<std::string> sources_of(const std::string& object, const fs::path& build) {
  const std::string folder = "src/bonfire/", targets = ".dir/";
  std::set<std::string> sources;
  const size_t target = object.rfind(targets);
  if (target == std::string::npos) return sources;
  const std::string file = fs::path(object.substr(target + targets.size())).replace_extension();
  if (file.starts_with(folder)) return {file.substr(folder.size())};
  std::istringstream lines(text_of(build / file));
  for (std::string line; std::getline(lines, line);) {
    const size_t open = line.find('"'), close = line.find('"', open + 1), at = line.rfind("bonfire/", close);
    if (line.starts_with("#include") && at != std::string::npos) sources.insert(line.substr(at + 8, close - at - 8));
  }
  return sources;
}

struct Symbol {
  std::string object, section, name;  // the last: "bonfire::(anonymous namespace)::op_registry()::registry"

  bool can_be_written() const {
    if (section.starts_with(".data.rel.ro")) return false;  // once it is loaded
    for (const char* kind : {".data", ".bss", ".tdata", ".tbss"})
      if (section.starts_with(kind)) return true;
    return false;
  }
  std::string variable() const {
    std::string last = name.substr(name.rfind("::") + 2);
    return last.substr(0, last.find_first_of("[<"));
  }
};

// Of the library's namespaces: what a compiler adds (guards of statics, virtual tables) has other names.
std::vector<Symbol> symbols_in(const std::string& text) {
  std::vector<Symbol> symbols;
  std::istringstream lines(text);
  std::string object;
  for (std::string line; std::getline(lines, line);) {
    if (size_t at = line.find(":     file format"); at != std::string::npos) object = line.substr(0, at);
    const size_t tab = line.find('\t'), name = line.find(" bonfire::", tab);
    if (tab == std::string::npos || name == std::string::npos) continue;
    const std::string between = line.substr(tab + 1, name - tab - 1);  // size, visibility
    if (between.find_first_not_of("0123456789abcdef") != std::string::npos && !between.ends_with(".hidden")) continue;
    symbols.push_back(
        {object, line.substr(line.rfind(' ', tab) + 1, tab - line.rfind(' ', tab) - 1), line.substr(name + 1)});
  }
  return symbols;
}

}  // namespace

std::vector<std::string> object_global_faults(const std::string& symbols, const fs::path& build, const fs::path& root,
                                              const fs::path& list) {
  std::map<std::string, std::string> texts;  // by file
  std::set<std::string> headers;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const std::string file = fs::relative(entry.path(), root);
    if (!entry.is_regular_file()) continue;
    texts[file] = without_comments(text_of(entry.path()));
    if (entry.path().extension() == ".h" || entry.path().extension() == ".cuh") headers.insert(file);
  }
  std::set<std::string> listed;  // "graph/op.cpp registry"
  std::istringstream lines(text_of(list));
  for (std::string line, path, name; std::getline(lines, line);)
    if (std::istringstream words(line); words >> path >> name) listed.insert(path + " " + name);

  std::set<std::string> faults;
  for (const Symbol& symbol : symbols_in(symbols)) {
    if (!symbol.can_be_written()) continue;
    const std::string name = symbol.variable();
    std::set<std::string> files = sources_of(symbol.object, build);
    if (std::none_of(files.begin(), files.end(), [&](const std::string& file) { return texts.contains(file); }))
      continue;  // generated, by protobuf
    const std::string own = files.size() == 1 ? *files.begin() : symbol.object;
    files.insert(headers.begin(), headers.end());
    bool known = false;
    for (const std::string& file : files)
      known = known || listed.contains(file + " " + name) || has_constant(texts[file], name);
    if (!known)
      faults.insert(fmt::format("{}: {} can be written ({}), is not const, and {} does not list it", own, symbol.name,
                                symbol.section, list.filename().string()));
  }
  return {faults.begin(), faults.end()};
}

}  // namespace bonfire::frame
