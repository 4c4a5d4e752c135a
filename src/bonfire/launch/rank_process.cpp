#include "bonfire/launch/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "bonfire/base/error.h"
#include "bonfire/base/interrupted.h"
#include "bonfire/comm/rendezvous.h"

namespace bonfire::launch {

namespace {

constexpr size_t kLastLines = 10;
constexpr size_t kLongestLine = 64 << 10;  // bytes; more are printed as several

struct Pipe {
  Pipe() {
    if (::pipe2(ends, O_CLOEXEC) != 0) throw_error<CommError>("[launch] no pipe: {}", std::strerror(errno));
  }
  int ends[2];
};

// All of it, unless nobody reads any more.
void write_all(int descriptor, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    ssize_t count = ::write(descriptor, text.data() + done, text.size() - done);
    if (count < 0 && errno != EINTR) return;
    if (count > 0) done += static_cast<size_t>(count);
  }
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> all;
  for (const std::string& word : words) all.push_back(const_cast<char*>(word.c_str()));
  all.push_back(nullptr);
  return all;
}

base::LogFile open_log(const std::filesystem::path& path) {
  if (path.empty()) return {};
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error && error.value() != ENOSPC && error.value() != EDQUOT)
    throw_error<ConfigError>("[launch] cannot make '{}' for the logs: {}", path.parent_path().string(),
                             base::write_problem(error.value()));
  try {
    return {path, base::LogFile::Begin::empty};
  } catch (const DataError& problem) {
    throw_error<ConfigError>("[launch] {}", problem.what());
  }
}

// Of a log that lacks something. Empty: nothing to say.
void warn(const std::string& text) {
  if (!text.empty()) write_all(STDERR_FILENO, fmt::format("bonfire launch: {}\n", text));
}

// In the new process, beside threads that no longer run: only calls that are safe in a signal handler.
[[noreturn]] void become(char* const* words, char* const* environment, int parent, int out, int err, int failed) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  for (int number : {SIGPIPE, SIGTTOU, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD}) ::signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  ::syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
  ::execve(words[0], words, environment);
  int reason = errno;
  [[maybe_unused]] ssize_t count = ::write(failed, &reason, sizeof reason);
  ::_exit(127);
}

}  // namespace

RankProcess::RankProcess(const RankCommand& command) : rank_(command.rank), log_(open_log(command.log)) {
  Pipe out, err, failed;
  std::vector<std::string> words = command.arguments;
  words.insert(words.begin(), command.program);
  std::vector<char*> argument_list = pointers(words), environment_list = pointers(command.environment);
  int parent = ::getpid();
  process_ = ::fork();
  if (process_ == 0)
    become(argument_list.data(), environment_list.data(), parent, out.ends[1], err.ends[1], failed.ends[1]);
  int fork_error = errno;
  for (const Pipe* pipe : {&out, &err, &failed}) ::close(pipe->ends[1]);
  streams_[0] = {out.ends[0], STDOUT_FILENO, {}};
  streams_[1] = {err.ends[0], STDERR_FILENO, {}};
  for (const Stream& stream : streams_) ::fcntl(stream.pipe, F_SETFL, O_NONBLOCK);
  int reason = 0;
  bool started =
      process_ > 0 && base::uninterrupted([&] { return ::read(failed.ends[0], &reason, sizeof reason); }) == 0;
  ::close(failed.ends[0]);
  if (!started)
    throw_error<ConfigError>("[launch] cannot start '{}': {}", command.program,
                             std::strerror(process_ > 0 ? reason : fork_error));
}

RankProcess::~RankProcess() {
  for (Stream& stream : streams_) close_stream(stream);
}

void RankProcess::signal(int number) const {
  if (running_) ::kill(-process_, number);
}

std::vector<int> RankProcess::pipes() const {
  std::vector<int> open;
  for (const Stream& stream : streams_)
    if (stream.pipe >= 0) open.push_back(stream.pipe);
  return open;
}

void RankProcess::read(int pipe) {
  for (Stream& stream : streams_) {
    if (stream.pipe != pipe) continue;
    char piece[16 << 10];
    ssize_t count = ::read(pipe, piece, sizeof piece);
    if (count > 0) stream.pending.append(piece, static_cast<size_t>(count));
    bool over = count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
    print(stream, over);
    if (over) close_stream(stream);
  }
}

void RankProcess::ended(int wait_status) {
  running_ = false;
  status_ = wait_status;
  for (Stream& stream : streams_) {
    char piece[16 << 10];
    for (ssize_t count; stream.pipe >= 0 && (count = ::read(stream.pipe, piece, sizeof piece)) > 0;)
      stream.pending.append(piece, static_cast<size_t>(count));
    print(stream, true);
    close_stream(stream);  // what it has started may still hold the other end
  }
  warn(log_.losses());
}

int RankProcess::exit_code() const { return WIFSIGNALED(status_) ? 128 + WTERMSIG(status_) : WEXITSTATUS(status_); }

std::string RankProcess::obituary() const {
  std::string how = WIFSIGNALED(status_)
                        ? fmt::format("was killed by signal {} ({})", WTERMSIG(status_), ::strsignal(WTERMSIG(status_)))
                        : fmt::format("ended with exit status {}", WEXITSTATUS(status_));
  return story(how);
}

std::string RankProcess::story(const std::string& how) const {
  std::string text = fmt::format("rank {} (process {} on {}) {}", rank_, process_, comm::host_name(), how);
  text += last_lines_.empty() ? "; it had printed nothing" : "; its last lines:";
  for (const std::string& line : last_lines_) text += "\n    " + line;
  return text;
}

// One write a line, so that lines of other ranks come between lines only.
void RankProcess::print(Stream& stream, bool at_the_end) {
  std::string prefixed, plain;
  auto take = [&](const std::string& line) {
    prefixed += fmt::format("[rank {}] {}\n", rank_, line);
    plain += line + "\n";
    last_lines_.push_back(line);
    if (last_lines_.size() > kLastLines) last_lines_.pop_front();
  };
  size_t begin = 0;
  for (size_t end; (end = stream.pending.find('\n', begin)) != std::string::npos; begin = end + 1)
    take(stream.pending.substr(begin, end - begin));
  stream.pending.erase(0, begin);
  if ((at_the_end && !stream.pending.empty()) || stream.pending.size() > kLongestLine) {
    take(stream.pending);
    stream.pending.clear();
  }
  write_all(stream.to, prefixed);
  if (plain.empty()) return;
  log_.write(plain, std::count(plain.begin(), plain.end(), '\n'));
  warn(log_.take_warning());
}

void RankProcess::close_stream(Stream& stream) {
  if (stream.pipe >= 0) ::close(stream.pipe);
  stream.pipe = -1;
}

}  // namespace bonfire::launch
