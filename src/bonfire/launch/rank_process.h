#pragma once
// One rank: a process, the two pipes through which it prints, and its log file.

#include <cstddef>
#include <deque>
#include <filesystem>
#include <string>
#include <vector>

#include "bonfire/base/log_file.h"

namespace bonfire::launch {

struct RankCommand {
  int rank = 0;
  std::string program;                   // a file
  std::vector<std::string> arguments;    // without the program
  std::vector<std::string> environment;  // NAME=value, all of it
  std::filesystem::path log;             // empty: none
};

class RankProcess {
 public:
  // ConfigError when the program cannot be started. It is killed when the calling thread ends.
  explicit RankProcess(const RankCommand& command);
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  ~RankProcess();  // closes the pipes; the process is left to whoever started it

  int rank() const { return rank_; }
  int process() const { return process_; }
  bool running() const { return running_; }
  // To it and all in its process group.
  void signal(int number) const;

  std::vector<int> pipes() const;  // those that may still say something
  void read(int pipe);             // what is there now, without waiting
  // When its process was seen to end: prints what is left.
  void ended(int wait_status);

  bool failed() const { return !running_ && status_ != 0; }
  bool ended_well() const { return !running_ && status_ == 0; }
  int exit_code() const;         // 128 + the signal where one killed it
  std::string obituary() const;  // "rank 1 (process 4711 on node0) ended with exit status 3; its last lines: ..."
  std::string story(const std::string& how) const;  // the same for what has not ended: how = "is frozen"

 private:
  struct Stream {
    int pipe = -1;
    int to = 1;           // our own stdout or stderr
    std::string pending;  // the beginning of a line
  };
  void print(Stream& stream, bool at_the_end);
  void close_stream(Stream& stream);

  int rank_;
  int process_ = -1;
  bool running_ = true;
  int status_ = 0;  // as waitpid says
  base::LogFile log_;
  Stream streams_[2];
  std::deque<std::string> last_lines_;
};

}  // namespace bonfire::launch
