#pragma once
// A training on two hosts with a relay between them, two ranks each: course_program.cpp, or a command.

#include <memory>
#include <string>

#include "tests/launch/relay.h"

namespace bonfire::testing {

struct RelayedJob {
  std::unique_ptr<ChildProcess> zero, one;

  struct Options {
    std::string file;  // in which the training is kept
    int steps = 200;
    Words of_zero = {"--node_timeout", "8"}, of_one = {};  // the launchers'
    Words fault = {};                                      // RANK SIGNAL STEP MICROSECONDS
    Words command = {};                                    // of a rank, instead of the course program
  };
  RelayedJob(const RelayedHosts& hosts, const Options& options)
      : zero(node(hosts, 0, options)), one(node(hosts, 1, options)) {}

  static std::unique_ptr<ChildProcess> node(const RelayedHosts& hosts, int number, const Options& options) {
    Words words{BONFIRE_PROGRAM, "launch",    "--nnodes",         "2", "--node_rank", std::to_string(number),
                "--master_addr", "10.81.0.1", "--nproc_per_node", "2"};
    Words rank = options.command;
    if (rank.empty()) rank = {program_beside("course_program"), "gloo", options.file, std::to_string(options.steps)};
    return std::make_unique<ChildProcess>(
        joined(hosts.inside(number == 0 ? "a" : "b"),
               joined(joined(words, number == 0 ? options.of_zero : options.of_one), joined(rank, options.fault))),
        clean({{"BONFIRE_TOKEN", "secret"}, {"BONFIRE_TEST", options.file}, {"BONFIRE_TUNE", "off"}}));
  }
};

// "weights MD5"; "": the training has not come to its end.
inline std::string weights_of(const std::string& output) {
  const size_t at = output.find("weights ");
  return at == std::string::npos ? "" : output.substr(at, output.find('\n', at) - at);
}

// What the launcher says first of a failure.
inline std::string first_report(const std::string& output) {
  for (size_t at = 0; (at = output.find("bonfire launch: ", at)) != std::string::npos; ++at) {
    std::string line = output.substr(at, output.find('\n', at) - at);
    const bool is_notice = line.find(" silent for ") != std::string::npos || line.find("restart ") != std::string::npos;
    if (!is_notice) return line;
  }
  return "";
}

}  // namespace bonfire::testing
