#pragma once
// Starts the ranks of this host, prints what they print, and ends or restarts all of them when one fails
// (docs/launch.md).
//
//   return launch::launch({.program = "./train", .arguments = {"--epochs", "3"}, .ranks = 4, .max_restarts = 2});

#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

namespace bonfire::launch {

struct LaunchOptions {
  std::string program;  // a file, or a name in PATH
  std::vector<std::string> arguments = {};
  int ranks = 1;  // on this host
  int nodes = 1, node = 0;
  std::string master_address = "127.0.0.1";
  int master_port = 0;  // 0: one host: a free one; several: 29500
  int64_t max_restarts = 0;
  std::filesystem::path log_folder = {};  // empty: no logs
  std::chrono::milliseconds rendezvous_timeout{300'000};
  std::chrono::milliseconds node_timeout{8'000};  // a host that is silent for so long is lost
  std::chrono::milliseconds rank_timeout{8'000};  // a rank without a heartbeat for so long is frozen; 0: never
  std::chrono::milliseconds stop_grace{30'000};   // after Ctrl-C
  std::chrono::milliseconds end_grace{3'000};     // after a failure
};

// The exit status of a rank that ends because another one did: the launcher looks for that one before it names a
// culprit.
inline constexpr int kLostPeer = 76;
// What a rank that fails with this error should end with: kLostPeer where a lost peer is the cause, whatever the error
// was wrapped in since; else 1.
int exit_status_of(const std::exception& error);

// The file of this program, for starting it again. ConfigError where /proc is not mounted.
std::filesystem::path own_program();

// The exit code: 0, that of the rank that failed first (1 when that was on another host), or 128 + the signal that
// stopped the job. To be called from a process with one thread; it returns when no process is left. ConfigError: a
// program that is not there, options that cannot be, no /proc.
int launch(const LaunchOptions& options);

}  // namespace bonfire::launch
