#pragma once
// Store: small values under names, which the ranks of a job use to find each other.
//
//   store->set("gloo/0/address", address);
//   std::string peer = store->get("gloo/1/address", 30s);      // waits until somebody has set it
//
// The gRPC server that holds them is owned by node 0's launcher, or by rank 0 where there is no launcher of ours
// (comm/store_server.h). All calls may come from any thread.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace bonfire::comm {

// What a rank says of itself every second.
struct LifeSign {
  int rank = 0;
  std::string name = {};   // "rank 1 (node0, process 4711)"
  std::string doing = {};  // "step 12, all_reduce"
};

// Bytes of a key and its value.
inline constexpr int kLongestMessage = 16 << 20;

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;  // CommError for more than kLongestMessage
  // Waits until the key is there. TimeoutError names the key and how long was waited; CommError when the server is
  // gone.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;
  // Waits until all keys are there. TimeoutError names those that are missing.
  virtual void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) = 0;
  // Adds to a number kept as text (absent: 0) and returns the sum.
  virtual int64_t add(const std::string& key, int64_t amount) = 0;

  // A sign of life (comm/heartbeat.h); returns the ranks of this job that are frozen.
  virtual std::vector<LifeSign> beat(const LifeSign& mine, std::chrono::milliseconds timeout) = 0;
  virtual void farewell(int rank, std::chrono::milliseconds timeout) = 0;  // this rank gives no more of them
  // For those who give none themselves.
  virtual std::vector<LifeSign> frozen_ranks() = 0;
  virtual std::vector<LifeSign> last_signs() = 0;  // of all ranks that have given one, in their order
};

}  // namespace bonfire::comm
