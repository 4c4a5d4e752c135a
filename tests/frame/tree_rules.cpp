#include "tests/frame/tree_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string_view>

namespace bonfire::frame {

namespace fs = std::filesystem;

namespace {

bool is_header(const fs::path& file) { return file.extension() == ".h" || file.extension() == ".cuh"; }
bool is_source(const fs::path& file) { return file.extension() == ".cpp" || file.extension() == ".cu"; }

// Headers and sources under `root`, relative to it, sorted.
std::vector<fs::path> code_files(const fs::path& root) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(root))
    if (is_header(entry.path()) || is_source(entry.path())) files.push_back(fs::relative(entry.path(), root));
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> read_lines(const fs::path& file) {
  std::ifstream stream(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// What a line includes, with its delimiters ("bonfire/base/error.h" or <span>); empty when it includes nothing.
std::string included_by(std::string_view line) {
  auto skip_blanks = [&] { line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size())); };
  skip_blanks();
  if (!line.starts_with("#")) return {};
  line.remove_prefix(1);
  skip_blanks();
  if (!line.starts_with("include")) return {};
  line.remove_prefix(std::string_view("include").size());
  skip_blanks();
  if (line.empty() || (line[0] != '"' && line[0] != '<')) return {};
  size_t end = line.find(line[0] == '"' ? '"' : '>', 1);
  return std::string(line.substr(0, end == std::string_view::npos ? end : end + 1));
}

constexpr int kTop = -1;      // directly in bonfire/
constexpr int kUnknown = -2;  // in a folder that the list does not name

// Place in `layers` of a path such as bonfire/backend/cpu/gemm/gemm.h.
int layer_of(const std::string& path, const std::vector<std::string>& layers) {
  if (fs::path(path).parent_path() == "bonfire") return kTop;
  for (size_t i = 0; i < layers.size(); ++i)
    if (path.starts_with("bonfire/" + layers[i] + "/")) return static_cast<int>(i);
  return kUnknown;
}

// The name of the variable that a line defines at namespace scope (clang-format leaves those in the first column), or
// for good inside a function, if the program can change it; empty for any other line.
std::string global_defined_by(const std::string& line) {
  static const std::regex kept(
      R"(^\s*(?:(?:static|constinit|inline|thread_local) )+([^(={;]*[ *&>:])(\w+)\s*(?:=|;|\{|\[|, ).*)");
  static const std::regex at_namespace(R"(^([A-Za-z_][\w:<>, *]*[ *&>])(\w+)(?: = .*|\{.*\}|\[.*\].*|, .*)?;.*)");
  static const std::regex is_no_variable(
      R"(\b(?:const|constexpr|using|namespace|return|struct|class|friend|enum|throw|else|extern)\b)");
  std::smatch found;
  const bool local = std::regex_match(line, found, kept);
  if (!local && !std::regex_match(line, found, at_namespace)) return {};
  if (line.find("thread_local") == std::string::npos &&
      std::regex_search(found[1].first, found[1].second, is_no_variable))
    return {};
  return found[2];
}

bool has_word(const fs::path& file, const std::string& word) {
  const std::regex alone("\\b" + word + "\\b");
  for (const std::string& line : read_lines(file))
    if (std::regex_search(line, alone)) return true;
  return false;
}

// Markdown files of `root` and its docs/, sorted.
std::vector<fs::path> pages(const fs::path& root) {
  std::vector<fs::path> files;
  for (const fs::path& folder : {root, root / "docs"})
    if (fs::exists(folder))
      for (const auto& entry : fs::directory_iterator(folder))
        if (entry.path().extension() == ".md") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

// Files that a line of Markdown links to, [words](file#part), outside of `code`.
std::vector<std::string> link_targets(const std::string& line) {
  std::string text;
  bool in_code = false;
  for (char c : line) {
    if (c == '`') in_code = !in_code;
    if (!in_code) text += c;
  }
  std::vector<std::string> targets;
  for (size_t at = text.find("]("); at != std::string::npos; at = text.find("](", at + 1)) {
    std::string target = text.substr(at + 2, text.find_first_of(")#", at) - at - 2);
    if (!target.empty() && target.find("://") == std::string::npos) targets.push_back(target);
  }
  return targets;
}

}  // namespace

std::vector<std::string> read_layers(const fs::path& file) {
  std::vector<std::string> layers;
  for (const std::string& line : read_lines(file)) {
    std::string name;
    if (std::istringstream(line) >> name) layers.push_back(name);
  }
  return layers;
}

std::vector<std::string> layering_faults(const fs::path& root, const std::vector<std::string>& layers) {
  std::vector<std::string> faults;
  for (const fs::path& file : code_files(root)) {
    int own = layer_of(file.generic_string(), layers);
    if (own == kUnknown) {
      faults.push_back(fmt::format("{} is in a folder that the list of layers does not name", file.string()));
      continue;
    }
    for (const std::string& line : read_lines(root / file)) {
      std::string included = included_by(line);
      if (included.empty()) continue;
      std::string path = included.substr(1, included.size() - 2);
      if (!path.starts_with("bonfire/")) {
        if (included[0] == '"')
          faults.push_back(fmt::format("{} includes {} without its full path", file.string(), included));
        continue;
      }
      int other = layer_of(path, layers);
      bool allowed = own == kTop ? other != kUnknown : other >= 0 && other <= own;
      if (!allowed) faults.push_back(fmt::format("{} must not include {}", file.string(), included));
    }
  }
  return faults;
}

std::vector<std::string> file_faults(const fs::path& root) {
  constexpr size_t kMostHeaderLines = 300, kMostSourceLines = 600;
  const std::set<std::string> vague{"util", "utils", "helper", "helpers", "common", "misc"};
  std::vector<std::string> faults;
  for (const fs::path& file : code_files(root)) {
    size_t lines = read_lines(root / file).size();
    size_t most = is_header(file) ? kMostHeaderLines : kMostSourceLines;
    if (lines > most) faults.push_back(fmt::format("{} has {} lines, more than {}", file.string(), lines, most));
    for (const fs::path& part : file)
      if (vague.contains(part.stem().string()))
        faults.push_back(fmt::format("{}: '{}' does not say what is inside", file.string(), part.string()));
  }
  return faults;
}

std::vector<std::string> global_faults(const fs::path& root, const fs::path& file) {
  std::set<std::string> listed;
  for (const std::string& line : read_lines(file)) {
    std::istringstream words(line);
    std::string path, name;
    if (words >> path >> name && path[0] != '#') listed.insert(fmt::format("{} {}", path, name));
  }
  std::vector<std::string> faults;
  for (const fs::path& path : code_files(root))
    for (const std::string& line : read_lines(root / path)) {
      const std::string name = global_defined_by(line);
      if (name.empty()) continue;
      const std::string one = fmt::format("{} {}", path.string(), name);
      if (!listed.contains(one))
        faults.push_back(fmt::format("{} is a global that {} does not list: {}", one, file.filename().string(), line));
    }
  for (const std::string& one : listed) {
    const size_t blank = one.find(' ');
    if (!has_word(root / one.substr(0, blank), one.substr(blank + 1)))
      faults.push_back(fmt::format("{} is listed, but not there", one));
  }
  return faults;
}

std::vector<std::string> link_faults(const fs::path& root) {
  std::vector<std::string> faults;
  for (const fs::path& file : pages(root)) {
    bool in_code = false;
    for (const std::string& line : read_lines(file)) {
      if (line.starts_with("```")) in_code = !in_code;
      if (in_code) continue;
      for (const std::string& target : link_targets(line))
        if (!fs::exists(file.parent_path() / target))
          faults.push_back(fmt::format("{}: there is no {}", fs::relative(file, root).string(), target));
    }
  }
  return faults;
}

}  // namespace bonfire::frame
