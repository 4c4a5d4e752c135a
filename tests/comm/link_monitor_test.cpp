#include "bonfire/comm/link_monitor.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include "bonfire/comm/file_descriptor.h"
#include "bonfire/comm/store_client.h"
#include "bonfire/comm/store_server.h"

namespace bonfire::comm::link_monitor_test {
namespace {

// A rank of a job on three hosts, the first of which cannot listen on its address.
Rendezvous job_of(int rank, const std::shared_ptr<Store>& store) {
  Rendezvous job{.environment = {.rank = rank, .world = 3}, .peers = {}, .store = store};
  for (int peer : {0, 1, 2})
    job.peers.push_back({.rank = peer,
                         .host = "host" + std::to_string(peer),
                         .address = peer == 0 ? "192.0.2.1" : "127.0.0.1",
                         .machine = std::to_string(peer)});
  return job;
}

TEST(LinkMonitor, AHostThatCannotListenKeepsNobodyFromTheOthers) {
  auto server = serve_store({.token = "secret"});
  auto store = connect_store({.port = server->port(), .token = "secret", .generation = 0});
  FileDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));  // rank 1's, which is the test
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener.get(), 4), 0);
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
  store->set("link/1", std::string(32, 's') + " " + std::to_string(ntohs(address.sin_port)));

  const LinkMonitor zero(job_of(0, store), [](const std::string&) {}), two(job_of(2, store), [](const std::string&) {});
  pollfd question{listener.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&question, 1, 20'000), 1) << "rank 2 has not called rank 1";
}

}  // namespace
}  // namespace bonfire::comm::link_monitor_test
