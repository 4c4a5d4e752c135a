#include "tests/support/child_process.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

namespace bonfire::testing {

namespace {

std::vector<std::string> environment_with(const ChildProcess::Variables& changes) {
  std::vector<std::string> all;
  for (char** one = environ; *one != nullptr; ++one) {
    std::string text = *one;
    bool changed = false;
    for (const auto& [name, value] : changes) changed |= text.starts_with(name + "=");
    if (!changed) all.push_back(text);
  }
  for (const auto& [name, value] : changes)
    if (!value.empty()) all.push_back(fmt::format("{}={}", name, value));
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> all;
  for (std::string& word : words) all.push_back(word.data());
  all.push_back(nullptr);
  return all;
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& words, const Variables& variables) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  std::vector<std::string> arguments = words, environment = environment_with(variables);
  std::vector<char*> argument_list = pointers(arguments), environment_list = pointers(environment);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(ends[1], STDERR_FILENO);
    ::signal(SIGHUP, SIG_DFL);  // the tests may run under nohup
    ::execvpe(argument_list[0], argument_list.data(), environment_list.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  pipe_ = ends[0];
}

ChildProcess::~ChildProcess() {
  if (!waited_) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(pipe_);
}

bool ChildProcess::read_more() {
  char piece[4096];
  ssize_t count = ::read(pipe_, piece, sizeof piece);
  if (count > 0) output_.append(piece, static_cast<size_t>(count));
  return count > 0;
}

std::string ChildProcess::read_line(const std::string& with) {
  for (;;) {
    size_t end = output_.find('\n', line_begin_);
    if (end == std::string::npos) {
      if (!read_more()) return {};
      continue;
    }
    std::string line = output_.substr(line_begin_, end - line_begin_);
    line_begin_ = end + 1;
    if (line.find(with) != std::string::npos) return line;
  }
}

int ChildProcess::wait() {
  if (waited_) return status_;
  while (read_more()) {
  }
  int status = 0;
  ::waitpid(pid_, &status, 0);
  waited_ = true;
  status_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return status_;
}

}  // namespace bonfire::testing
