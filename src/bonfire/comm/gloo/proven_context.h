#pragma once
// Gloo's context over connections that are there already (comm/gloo/peer_sockets.h).
//
// Gloo makes its connections itself, listens for each of them, and takes the first caller. Its interface has no other
// way in. So each of its pairs connects to a socket of this process's own, on the loopback device, and the descriptor
// that it has got then stands for the connection with the peer (dup3): Gloo never notices.

#include <gloo/context.h>
#include <gloo/transport/tcp/device.h>

#include <chrono>
#include <memory>
#include <vector>

#include "bonfire/comm/file_descriptor.h"

namespace bonfire::comm {

// Where a pair connects first. Less than any address of the device's: then Gloo's pair is the one that calls.
inline constexpr const char* kMeetingPoint = "127.0.0.1";

// Runs Gloo's thread; for any number of contexts. CommError without a loopback device.
std::shared_ptr<gloo::transport::tcp::Device> gloo_device();

class ProvenContext : public gloo::Context {
 public:
  // `sockets`: [size], by rank.
  ProvenContext(int rank, std::vector<FileDescriptor> sockets, std::shared_ptr<gloo::transport::tcp::Device> device,
                std::chrono::milliseconds timeout);

 private:
  void run_over(int peer, const FileDescriptor& socket, gloo::transport::tcp::Device& device);
};

}  // namespace bonfire::comm
