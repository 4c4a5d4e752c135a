#include "bonfire/data/fetch.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/base/interrupted.h"
#include "bonfire/base/md5.h"
#include "bonfire/base/nearest.h"

extern char** environ;

namespace bonfire::data {

namespace {

namespace fs = std::filesystem;

// --- programs --------------------------------------------------------------------------------------------------------

struct Ended {
  int status = 0;     // its exit code, or 128 + the signal that ended it
  std::string words;  // what it wrote on stderr; empty where that is shown
};

// Runs a program until it ends. ConfigError when it is not installed.
Ended run_program(std::vector<std::string> arguments, bool show) {
  int pipe[2] = {-1, -1};
  if (::pipe2(pipe, O_CLOEXEC) != 0) throw_error<DataError>("[fetch] cannot make a pipe: {}", std::strerror(errno));
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (!show) posix_spawn_file_actions_adddup2(&actions, pipe[1], STDERR_FILENO);
  pid_t child = 0;
  int error = ::posix_spawnp(&child, pointers[0], &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(pipe[1]);
  Ended ended;
  char piece[512];
  while (error == 0) {
    ssize_t count = base::uninterrupted([&] { return ::read(pipe[0], piece, sizeof piece); });
    if (count <= 0) break;
    ended.words.append(piece, static_cast<size_t>(count));
  }
  ::close(pipe[0]);
  int status = 0;
  if (error == 0) base::uninterrupted([&] { return ::waitpid(child, &status, 0); });
  ended.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  constexpr int kNotStarted = 127;  // so some systems tell that there is no such program
  if (error != 0 || ended.status == kNotStarted)
    throw_error<ConfigError>("[fetch] cannot run the program {}: {}; install it (apt-get install {})", arguments[0],
                             std::strerror(error != 0 ? error : ENOENT), arguments[0]);
  while (!ended.words.empty() && ended.words.back() == '\n') ended.words.pop_back();
  return ended;
}

// --- one file --------------------------------------------------------------------------------------------------------

// What curl's exit codes that matter here mean.
constexpr int kNoHost = 6, kNoConnection = 7, kCutOff = 18, kHttpError = 22, kTimeout = 28, kNoRanges = 33,
              kReceiveError = 56;

std::string host_of(const std::string& url) {
  size_t begin = url.find("://");
  begin = begin == std::string::npos ? 0 : begin + 3;
  return url.substr(begin, url.find('/', begin) - begin);
}

class Download {
 public:
  Download(const RemoteFile& file, const fs::path& folder, const FetchOptions& options)
      : file_(file), target_(folder / file.name), part_(folder / (file.name + ".part")), options_(options) {}

  void run() {
    if (base::exists(target_)) {
      if (checksum(target_) == file_.md5) return say("is there already");
      throw_error<DataError>("[fetch] {} is there with the MD5 {}, expected {}; remove it and try again",
                             target_.string(), checksum(target_), file_.md5);
    }
    bool resumed = size() > 0;
    if (!resumed || checksum(part_) != file_.md5) receive();
    if (checksum(part_) != file_.md5 && resumed) {  // what was there before may have been of another file
      say("does not fit what was there before; from the beginning");
      fs::remove(part_);
      receive();
    }
    if (std::string found = checksum(part_); found != file_.md5) {
      fs::remove(part_);
      throw_error<DataError>(
          "[fetch] {}: MD5 {}, expected {}; the server has another file, or it was changed on the way. Nothing was "
          "kept",
          file_.url, found, file_.md5);
    }
    fs::rename(part_, target_);
    base::sync_folder(target_.parent_path());
    say(fmt::format("{:.1f} MB", static_cast<double>(fs::file_size(target_)) / 1e6));
  }

 private:
  static std::string checksum(const fs::path& path) { return base::md5(base::MappedFile(path).bytes()); }
  uint64_t size() const {  // that has arrived
    std::error_code absent;
    uint64_t bytes = fs::file_size(part_, absent);
    return absent ? 0 : bytes;
  }
  void say(const std::string& text) const {
    if (options_.say) options_.say(file_.name + "  " + text);
  }

  Ended run_curl(bool show) const {
    return run_program({"curl", "--fail", "--location", "--proto", "=http,https", "--connect-timeout", "10",
                        "--speed-limit", "100", "--speed-time", "30", "--continue-at", "-",
                        show ? "--progress-bar" : "--silent", "--show-error", "--output", part_.string(), file_.url},
                       show);
  }

  // Until all is there; a server that cuts off is asked for the rest as long as some of it comes.
  void receive() {
    while (true) {
      uint64_t before = size();
      Ended curl = run_curl(options_.show_progress);
      if (curl.status == 0) return;
      if (curl.status == kNoRanges) {
        say("the server cannot go on in the middle; from the beginning");
        fs::remove(part_);
        if (before > 0) continue;
      }
      bool cut_off = curl.status == kCutOff || curl.status == kReceiveError || curl.status == kTimeout;
      if (cut_off && size() > before) {
        say(fmt::format("cut off after {} bytes; going on", size()));
        continue;
      }
      if (curl.status == kHttpError && options_.show_progress) curl = run_curl(false);  // for its words
      // Beyond its end nothing can be asked for: what is there is all, or of another file.
      if (curl.status == kHttpError && before > 0 && curl.words.find("416") != std::string::npos) return;
      fail(curl);
    }
  }

  [[noreturn]] void fail(const Ended& curl) const {
    std::string words = curl.words.empty() ? fmt::format("curl ended with {}", curl.status) : curl.words;
    if (curl.status == kNoHost || curl.status == kNoConnection || (curl.status == kTimeout && size() == 0))
      throw_error<CommError>(
          "[fetch] cannot reach {} ({}): is there a network? Otherwise fetch {} elsewhere and put it into '{}', or "
          "name "
          "another place with --from",
          host_of(file_.url), words, file_.url, target_.parent_path().string());
    if (curl.status == kHttpError)
      throw_error<CommError>("[fetch] {} does not give {} ({}); name another place with --from", host_of(file_.url),
                             file_.url, words);
    throw_error<CommError>("[fetch] {} was not fetched ({}); {} bytes are kept, try again to go on", file_.url, words,
                           size());
  }

  const RemoteFile& file_;
  fs::path target_, part_;
  const FetchOptions& options_;
};

// --- sets ------------------------------------------------------------------------------------------------------------

std::vector<RemoteFile> idx_files(const std::string& url, const std::vector<std::string>& sums) {
  constexpr const char* kNames[] = {"train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz",
                                    "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"};
  std::vector<RemoteFile> files;
  for (size_t i = 0; i < sums.size(); ++i) files.push_back({kNames[i], url + kNames[i], sums[i]});
  return files;
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw_error<ConfigError>("[fetch] cannot make '{}': {}", folder.string(), error.message());
}

// Into a folder of another name first, so that half of it never looks like all.
void unpack(const fs::path& archive, const fs::path& target) {
  fs::path unfinished = target.string() + ".unfinished";
  fs::remove_all(unfinished);
  make_folder(unfinished);
  Ended tar = run_program({"tar", "-xzf", archive.string(), "-C", unfinished.string()}, false);
  std::error_code error;
  if (tar.status == 0) fs::rename(unfinished / target.filename(), target, error);
  if (tar.status != 0 || error) {
    fs::remove_all(unfinished);
    throw_error<DataError>("[fetch] cannot unpack {}: {}", archive.string(),
                           tar.status != 0 ? tar.words : fmt::format("it has no {}", target.filename().string()));
  }
  fs::remove_all(unfinished);
  base::sync_folder(target.parent_path());
}

}  // namespace

const std::vector<PublicSet>& public_sets() {
  static const std::vector<PublicSet> kSets{
      {"mnist", "MNIST, handwritten digits, 60,000 + 10,000 images of 28 x 28", "mnist",
       idx_files("https://ossci-datasets.s3.amazonaws.com/mnist/",
                 {"f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432",
                  "9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c"})},
      {"fashion_mnist", "Fashion-MNIST, clothes, 60,000 + 10,000 images of 28 x 28", "fashion_mnist",
       idx_files("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                 {"8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe",
                  "bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310"})},
      {"cifar10",
       "CIFAR-10, photographs of ten classes, 50,000 + 10,000 images of 32 x 32",
       "cifar-10-batches-bin",
       {{"cifar-10-binary.tar.gz", "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
         "c32a1d4ab5d03f1284b67883e8d87530"}},
       true},
      {"cifar100",
       "CIFAR-100, photographs of a hundred classes, 50,000 + 10,000 images of 32 x 32",
       "cifar-100-binary",
       {{"cifar-100-binary.tar.gz", "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
         "03b5dce01913d631647c71ecec9e9cb8"}},
       true},
  };
  return kSets;
}

fs::path fetch_set(const std::string& name, const fs::path& into, const FetchOptions& options) {
  std::vector<std::string> names;
  for (const PublicSet& set : public_sets()) {
    if (set.name == name) return fetch_set(set, into, options);
    names.push_back(set.name);
  }
  throw_error<ConfigError>(
      "[fetch] there is no set called '{}'; the nearest is '{}' (of mnist, fashion_mnist, cifar10, "
      "cifar100)",
      name, base::nearest(name, names));
}

fs::path fetch_set(const PublicSet& set, const fs::path& into, const FetchOptions& options) {
  fs::path target = into / set.folder, folder = set.is_archive ? into : target;
  if (set.is_archive && base::exists(target)) {
    if (options.say) options.say(target.string() + " is there already");
    return target;
  }
  bool is_new = !base::exists(folder);
  make_folder(folder);
  try {
    for (RemoteFile file : set.files) {
      if (!options.from.empty()) file.url = options.from + (options.from.ends_with('/') ? "" : "/") + file.name;
      Download(file, folder, options).run();
      if (set.is_archive) unpack(folder / file.name, target);
    }
  } catch (const Error&) {
    std::error_code ignored;
    if (is_new) fs::remove(folder, ignored);  // only if nothing has come
    throw;
  }
  return target;
}

}  // namespace bonfire::data
