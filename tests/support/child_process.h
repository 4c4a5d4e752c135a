#pragma once
// A program that a test starts, talks to through pipes, signals, and never leaves behind.
//
//   ChildProcess server({program_beside("store_server_program")});
//   std::string port = server.read_line();
//   server.signal(SIGKILL);
//   EXPECT_EQ(server.wait(), 128 + SIGKILL);

#include <csignal>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace bonfire::testing {

// tests/FOLDER/NAME.cpp, whose NAME ends in _program, is built beside the tests.
inline std::string program_beside(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").replace_filename(name).string();
}

class ChildProcess {
 public:
  using Variables = std::vector<std::pair<std::string, std::string>>;
  // Its stdout and stderr are one pipe. An empty value takes a variable out of its environment.
  explicit ChildProcess(const std::vector<std::string>& words, const Variables& variables = {});
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();  // kills it

  int pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }
  // The next line of what it prints; of those before it, all that do not contain `with` are left out. "" at the end.
  std::string read_line(const std::string& with = {});
  int wait();                                            // its exit status, or 128 + the signal that ended it
  const std::string& output() const { return output_; }  // all that was read so far; after wait(): all

 private:
  bool read_more();

  int pid_ = -1;
  int pipe_ = -1;
  bool waited_ = false;
  int status_ = 0;
  size_t line_begin_ = 0;  // in output_
  std::string output_;
};

}  // namespace bonfire::testing
