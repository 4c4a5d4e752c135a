#pragma once
// Store: small values under names, which the ranks of a job use to find each other.
//
//   store->set("gloo/0/address", address);
//   std::string peer = store->get("gloo/1/address", 30s);      // waits until somebody has set it
//
// A link that is out for a while is not noticed: calls are made again, until nothing has come from the server for as
// long as the client was told (StoreClientOptions::silence). The gRPC server that holds them is owned by node 0's
// launcher, or by rank 0 where there is no launcher of ours (comm/store_server.h). All calls may come from any thread.

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
  int host = -1;           // whose launcher gives signs of life too; -1: there is none
};

// What a launcher learns in return for its sign of life.
struct HostNews {
  std::vector<LifeSign> frozen = {};             // ranks
  std::chrono::milliseconds slowest_answer{0};   // that the server takes for any of the launchers, of late
  std::chrono::milliseconds longest_silence{0};  // since the one was heard that was heard longest ago
};

// Bytes of a key and its value.
inline constexpr int kLongestMessage = 16 << 20;

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;  // CommError for more than kLongestMessage
  // Sets the key unless somebody has, and returns the value that stands.
  virtual std::string claim(const std::string& key, const std::string& value) = 0;
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
  // A launcher's sign of life, for its host: time in which none comes does not count against the ranks there. `answer`:
  // how long the last one took to be answered.
  virtual HostNews beat_of_host(int host, std::chrono::milliseconds answer) = 0;
  // From now on the server knows at once when this process, the launcher of that host, has ended (StoreServer::hosts).
  virtual void stay(int host) = 0;
  virtual std::vector<LifeSign> last_signs() = 0;  // of all ranks that have given one, in their order
};

}  // namespace bonfire::comm
