#pragma once
// Downloads public data sets, by the program curl.
//
//   std::filesystem::path folder = data::fetch_set("mnist", "data");   // data/mnist
//
// A file arrives under another name (FILE.part), is compared with its checksum and gets its own name only then. What
// was cut off goes on where it ended, in this call or the next.

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace bonfire::data {

struct RemoteFile {
  std::string name, url;
  std::string md5;  // of the file
};

struct PublicSet {
  std::string name, title;
  std::string folder;  // what it becomes
  std::vector<RemoteFile> files;
  bool is_archive = false;  // one .tar.gz file with that folder inside
};

const std::vector<PublicSet>& public_sets();

struct FetchOptions {
  std::string from = {};       // where the files are, instead of where they are published: http://host/folder
  bool show_progress = false;  // curl's bar on stderr
  std::function<void(const std::string&)> say = {};  // a line for a person now and then
};

// Puts the set's folder into `into` and returns its path; what is there already and whole is left as it is. ConfigError
// for a name that is not known and when curl is not installed; CommError when a host cannot be reached or does not have
// the file; DataError for another checksum than it should have.
std::filesystem::path fetch_set(const std::string& name, const std::filesystem::path& into,
                                const FetchOptions& options = {});
std::filesystem::path fetch_set(const PublicSet& set, const std::filesystem::path& into,
                                const FetchOptions& options = {});

}  // namespace bonfire::data
