#pragma once
// What the benchmarks measure with: medians, peak memory, and processes that wait for their turn.

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace bench {

using Clock = std::chrono::steady_clock;

inline double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }
inline double microseconds(Clock::duration duration) { return seconds(duration) * 1e6; }

inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Of this process so far.
inline int64_t peak_kilobytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

// `taskset -c 0,2 `: as many of the processors that this process may use. Two that are threads of one core share its
// vector units, so others come first.
inline std::string on_processors(int count) {
  cpu_set_t may;
  CPU_ZERO(&may);
  sched_getaffinity(0, sizeof may, &may);
  std::vector<int> apart, beside;
  std::set<std::string> cores;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (!CPU_ISSET(processor, &may)) continue;
    std::string name = "cpu" + std::to_string(processor), core = name;
    std::getline(std::ifstream("/sys/devices/system/cpu/" + name + "/topology/thread_siblings_list"), core);
    (cores.insert(core).second ? apart : beside).push_back(processor);
  }
  apart.insert(apart.end(), beside.begin(), beside.end());
  std::string list;
  for (size_t i = 0; i < std::min(apart.size(), static_cast<size_t>(count)); ++i)
    list += (i == 0 ? "" : ",") + std::to_string(apart[i]);
  return "taskset -c " + list + " ";
}

// This process has the processor whose turn it is, where there are so many.
inline void pin(int turn) {
  cpu_set_t may, own;
  CPU_ZERO(&own);
  if (sched_getaffinity(0, sizeof may, &may) != 0 || CPU_COUNT(&may) <= turn) return;
  for (int processor = 0, seen = 0; processor < CPU_SETSIZE; ++processor)
    if (CPU_ISSET(processor, &may) && seen++ == turn) CPU_SET(processor, &own);
  sched_setaffinity(0, sizeof own, &own);
}

// What a command prints as its last line; empty if it fails.
inline std::string output_of(const std::string& command) {
  std::string last;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return last;
  char line[512];
  while (fgets(line, sizeof line, pipe) != nullptr) last = line;
  return pclose(pipe) == 0 ? last : std::string();
}

inline double number_of(const std::string& command) {
  std::string text = output_of(command);
  return text.empty() ? 0 : std::stod(text);
}

// A process that answers each line it is given with one line, and sleeps between. Its end is the end of its input.
class Worker {
 public:
  explicit Worker(const std::string& command) {
    int down[2], up[2];
    if (pipe2(down, O_CLOEXEC) != 0 || pipe2(up, O_CLOEXEC) != 0) return;
    process_ = fork();
    if (process_ == 0) {
      dup2(down[0], STDIN_FILENO);
      dup2(up[1], STDOUT_FILENO);
      execl("/bin/sh", "sh", "-c", ("exec " + command).c_str(), nullptr);
      _exit(127);
    }
    close(down[0]);
    close(up[1]);
    to_ = fdopen(down[1], "w");
    from_ = fdopen(up[0], "r");
  }
  ~Worker() {
    if (to_ != nullptr) std::fclose(to_);
    if (from_ != nullptr) std::fclose(from_);
    if (process_ > 0) waitpid(process_, nullptr, 0);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // The number that it answers; 0 when it has failed.
  double ask(const std::string& line) {
    tell(line);
    return answer();
  }
  // The two apart, for several that work together.
  void tell(const std::string& line) {
    if (to_ == nullptr) return;
    std::signal(SIGPIPE, SIG_IGN);
    std::fprintf(to_, "%s\n", line.c_str());
    std::fflush(to_);
  }
  double answer() {
    if (to_ == nullptr || from_ == nullptr) return 0;
    char answer[512];
    if (fgets(answer, sizeof answer, from_) == nullptr) return 0;
    return std::atof(answer);
  }

 private:
  pid_t process_ = -1;
  FILE* to_ = nullptr;
  FILE* from_ = nullptr;
};

// Answers to questions that are asked in turns, four times a round: what a machine does besides changes within seconds,
// so answers of one turn are compared with each other.
class Turns {
 public:
  Turns(const std::vector<std::string>& questions, int rounds, const std::function<double(const std::string&)>& ask) {
    for (int turn = -1; turn < 4 * rounds; ++turn)  // the first one warms up
      for (const std::string& question : questions) {
        double answer = ask(question);
        if (turn >= 0) answers_[question].push_back(answer);
      }
  }
  double operator[](const std::string& question) { return median(answers_[question]); }
  double ratio(const std::string& a, const std::string& b) { return median(compared(a, b, std::divides<>())); }
  double difference(const std::string& a, const std::string& b) { return median(compared(a, b, std::minus<>())); }

 private:
  template <class Compare>
  std::vector<double> compared(const std::string& a, const std::string& b, Compare compare) {
    std::vector<double> results;
    std::transform(answers_[a].begin(), answers_[a].end(), answers_[b].begin(), std::back_inserter(results), compare);
    return results;
  }
  std::map<std::string, std::vector<double>> answers_;
};

}  // namespace bench
