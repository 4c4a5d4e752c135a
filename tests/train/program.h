#pragma once
// The program itself, in a process of its own.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

extern char** environ;

namespace bonfire::testing {

// A process that was started, with its output in a file.
class Program {
 public:
  Program(std::vector<std::string> arguments, const std::filesystem::path& output) : output_(output) {
    arguments.insert(arguments.begin(), BONFIRE_PROGRAM);
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    posix_spawnattr_t attributes;  // the tests may run under nohup
    posix_spawnattr_init(&attributes);
    sigset_t hangup;
    sigemptyset(&hangup);
    sigaddset(&hangup, SIGHUP);
    posix_spawnattr_setsigdefault(&attributes, &hangup);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    EXPECT_EQ(posix_spawn(&pid_, BONFIRE_PROGRAM, &actions, &attributes, pointers.data(), environ), 0);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
  }

  void signal(int number) const { kill(pid_, number); }
  int wait() const {  // its exit status, or 128 + the signal that ended it
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  std::string output() const {
    std::ifstream stream(output_, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  // Until the text is in the output; false when that takes too long.
  bool prints(const std::string& text) const {
    for (int i = 0; i < 6000; ++i) {
      if (output().find(text) != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

 private:
  std::filesystem::path output_;
  pid_t pid_ = 0;
};

}  // namespace bonfire::testing
