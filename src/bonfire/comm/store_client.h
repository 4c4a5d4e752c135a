#pragma once
// A Store that is held by a server elsewhere (store_server.h).
//
//   auto store = comm::connect_store({.host = "node0", .port = 29500, .token = token, .generation = 0, .caller = "rank
//   3"});

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "bonfire/comm/store.h"
#include "bonfire/comm/tls.h"

namespace bonfire::comm {

struct StoreClientOptions {
  std::string host = "127.0.0.1";  // name, IPv4 or IPv6 literal
  int port = 0;
  std::string token = {};
  Tls tls = {};                            // with which the server's certificate must be one for `host`
  std::optional<int64_t> generation = {};  // of the rank; none: a launcher
  std::string caller = {};                 // who this is, for messages: "rank 3"
  std::string holder = {};                 // who opens the store, for messages: "rank 0"
  std::chrono::milliseconds connect_timeout{60'000};
  std::chrono::milliseconds call_timeout{30'000};  // of set and add
  std::chrono::milliseconds silence{8'000};        // a server from which nothing comes for so long is gone
};

// Waits for a server that is not up yet, and says so (comm/wait_notice.h) where it knows the holder. CommError when the
// host cannot be reached, or answers but holds no store of this job. A server that goes away later makes every call,
// also one that waits, a CommError: at once where its host says so, else when it has been silent for too long.
std::shared_ptr<Store> connect_store(const StoreClientOptions& options);

}  // namespace bonfire::comm
