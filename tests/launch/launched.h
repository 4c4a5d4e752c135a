#pragma once
// `bonfire launch` in a process of its own, with tests/comm/rank_program.cpp as its ranks.

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/free_port.h"

namespace bonfire::testing {

using Words = std::vector<std::string>;

inline Words joined(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

inline size_t count(const std::string& text, const std::string& part) {
  size_t times = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

// No variable of the caller's own job may leak into that of the test.
inline ChildProcess::Variables clean(const ChildProcess::Variables& more = {}) {
  ChildProcess::Variables variables{{"RANK", ""}, {"WORLD_SIZE", ""}, {"OMP_NUM_THREADS", ""}, {"BONFIRE_TOKEN", ""}};
  for (const auto& [name, value] : more) {
    for (auto& [old, old_value] : variables)
      if (old == name) old_value = value;
    variables.emplace_back(name, value);
  }
  return variables;
}

class Launched : public ChildProcess {
 public:
  Launched(const Words& options, const Words& rank, const ChildProcess::Variables& variables = {},
           const Words& before = {})
      : ChildProcess(joined(joined(joined(before, {BONFIRE_PROGRAM, "launch"}), options),
                            joined({program_beside("rank_program")}, rank)),
                     clean(variables)) {}

  // The processes that ranks with `spawn` name, two a rank.
  std::vector<int> processes(int ranks) {
    std::vector<int> all;
    for (int i = 0; i < ranks; ++i) {
      std::istringstream line(read_line("processes "));
      std::string word;
      while (line >> word && word != "processes") {
      }
      for (int process; line >> process;) all.push_back(process);
    }
    return all;
  }
};

// One node of a job of two on this host.
class LaunchedNode : public Launched {
 public:
  LaunchedNode(int node, int port, const Words& options, const Words& rank)
      : Launched(joined({"--nnodes", "2", "--node_rank", std::to_string(node), "--master_port", std::to_string(port)},
                        options),
                 rank, {{"BONFIRE_TOKEN", "secret"}}) {}
};

// Not when it is dead and nobody has asked yet how it ended.
inline bool is_there(int process) {
  std::ifstream stream("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(stream, text, '\0');
  size_t name_end = text.rfind(')');
  return name_end != std::string::npos && text.substr(name_end, 3) != ") Z";
}

// The first process that it has started; -1: none.
inline int child_of(int process) {
  std::ifstream stream("/proc/" + std::to_string(process) + "/task/" + std::to_string(process) + "/children");
  int child = -1;
  stream >> child;
  return child;
}

// The three processes of a launcher: the one that was started, its guard, and the one that has started the ranks.
inline std::vector<int> launcher_of(const ChildProcess& job) {
  const int guard = child_of(job.pid());
  return {job.pid(), guard, child_of(guard)};
}

// Whether none is there any more within 5 s.
inline bool gone_soon(const std::function<std::vector<int>()>& processes) {
  for (int i = 0; i < 500; ++i) {
    bool left = false;
    for (int process : processes()) left |= is_there(process);
    if (!left) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// All that were started with NAME=value in their environment, whoever started them.
inline std::vector<int> processes_with(const std::string& variable) {
  std::vector<int> all;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream stream(entry.path() / "environ", std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(stream), {}};
    if ((std::string(1, '\0') + text).find('\0' + variable + '\0') != std::string::npos) all.push_back(std::stoi(name));
  }
  return all;
}

// Of a job whose environment has BONFIRE_TEST=mark; -1: there is none.
inline int process_of_rank(int rank, const std::string& mark) {
  const std::vector<int> all = processes_with("BONFIRE_TEST=" + mark);
  for (int process : processes_with("RANK=" + std::to_string(rank)))
    if (std::find(all.begin(), all.end(), process) != all.end()) return process;
  return -1;
}

}  // namespace bonfire::testing
