#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "bonfire/base/error.h"
#include "bonfire/base/log.h"
#include "bonfire/data/source.h"
#include "tools/command.h"

namespace bonfire::tools {

namespace {

namespace fs = std::filesystem;

struct DataListWanted {
  std::string folder = "data";
  bool json = false;
};

struct Found {
  fs::path path;
  data::SourceKind kind;
};

// The folder itself, those in it and those in them.
std::vector<Found> find(const fs::path& folder) {
  std::vector<Found> found;
  auto look = [&](const auto& look, const fs::path& path, int depth) -> void {
    try {
      if (auto kind = data::kind_of(path)) return found.push_back({path, *kind});
    } catch (const Error& error) {  // others may still be listed
      base::log_warning("bonfire: {}", error.what());
      return;
    }
    if (depth == 0) return;
    std::error_code ignored;
    std::vector<fs::path> inside;
    for (const fs::directory_entry& entry : fs::directory_iterator(path, ignored))
      if (entry.is_directory(ignored)) inside.push_back(entry.path());
    std::sort(inside.begin(), inside.end());
    for (const fs::path& one : inside) look(look, one, depth - 1);
  };
  look(look, folder, 2);
  return found;
}

int run_data_list(const DataListWanted& wanted) {
  std::error_code ignored;
  if (!fs::is_directory(wanted.folder, ignored) && wanted.folder != DataListWanted().folder)
    throw_error<DataError>("[data] there is no folder '{}'", wanted.folder);
  std::vector<Found> found = find(wanted.folder);
  if (wanted.json) {
    nlohmann::json list = nlohmann::json::array();
    for (const Found& one : found) list.push_back({{"folder", one.path.string()}, {"kind", data::name_of(one.kind)}});
    return std::printf("%s\n", list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str()) < 0 ? 1 : 0;
  }
  std::printf("built in    glyphs, boxes, sentences, sequences     data=generated\n");
  for (const Found& one : found) std::printf("found       %-24s data=%s\n", data::name_of(one.kind), one.path.c_str());
  if (found.empty()) std::printf("no other data in '%s'\n", wanted.folder.c_str());
  return 0;
}

}  // namespace

void add_data_list(Command data) {
  Command command = data.add("list", "Says what data there is",
                             "bonfire data list              in the folder data/\n"
                             "bonfire data list FOLDER       in another, and the folders inside\n"
                             "bonfire data list --json       [{\"folder\": ..., \"kind\": ...}, ...]");
  auto wanted = std::make_shared<DataListWanted>();
  command.optional_argument("folder", wanted->folder, "where to look (data)");
  command.option("--json", wanted->json, "print one JSON list");
  command.runs([wanted] { return run_data_list(*wanted); });
}

}  // namespace bonfire::tools
