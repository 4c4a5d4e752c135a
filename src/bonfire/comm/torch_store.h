#pragma once
// The store that torchrun's agent keeps for the processes that it starts: PyTorch's TCPStore, at MASTER_ADDR and
// MASTER_PORT, which all ranks on all hosts reach. Here it hands on a token.
//
//   std::string token = first_in_torch_store({"10.0.0.1", 29500, 60s}, "bonfire/token", random_secret()).value_or("");

#include <chrono>
#include <optional>
#include <string>

namespace bonfire::comm {

struct TorchStore {
  std::string host;
  int port;
  std::chrono::milliseconds timeout;  // for the port to be there
};

// Of all the values that ranks offer for a key, the one that came first: the same for everyone, as long as the store is
// there. Nothing where no store of PyTorch answers (2.1 or later).
std::optional<std::string> first_in_torch_store(const TorchStore& store, const std::string& key,
                                                const std::string& offered);

}  // namespace bonfire::comm
