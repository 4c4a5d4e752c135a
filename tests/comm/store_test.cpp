#include "bonfire/comm/store.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <stdexcept>
#include <thread>
#include <utility>

#include "bonfire/comm/network.h"
#include "bonfire/comm/store_client.h"
#include "bonfire/comm/store_server.h"
#include "tests/support/child_process.h"
#include "tests/support/expect_error.h"

namespace bonfire::comm::store_test {

namespace {

using namespace std::chrono_literals;
using bonfire::testing::ChildProcess;
using bonfire::testing::expect_mentions;
using bonfire::testing::program_beside;

std::unique_ptr<StoreServer> serve(const std::string& address = "127.0.0.1") {
  return serve_store({.address = address, .token = "secret"});
}

std::shared_ptr<Store> rank_of(int port, int64_t generation = 0, const std::string& host = "127.0.0.1") {
  return connect_store({.host = host, .port = port, .token = "secret", .generation = generation, .caller = "rank 1"});
}

std::shared_ptr<Store> launcher_of(int port) {
  return connect_store({.port = port, .token = "secret", .caller = "launcher of node 1"});
}

// A process of its own that holds a store until it is killed.
struct ServerProgram : ChildProcess {
  ServerProgram() : ChildProcess({program_beside("store_server_program")}), port(std::stoi(read_line())) {}
  int port;
};

// Listens and accepts, but says nothing.
struct SilentListener {
  SilentListener() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (::bind(socket, generic, size) != 0 || ::listen(socket, 8) != 0) throw std::runtime_error("cannot listen");
    ::getsockname(socket, generic, &size);
    port = ntohs(address.sin_port);
  }
  ~SilentListener() { ::close(socket); }
  int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int port = 0;
};

bool has_ipv6() {
  for (const Interface& one : interfaces())
    if (one.address == "::1") return true;
  return false;
}

}  // namespace

TEST(Store, TakesNothingSoLargeThatStrangersCouldFillTheMemory) {
  auto server = serve();
  auto store = rank_of(server->port());
  store->set("large", std::string(kLongestMessage / 2, 'x'));
  EXPECT_EQ(store->get("large", 30s).size(), static_cast<size_t>(kLongestMessage / 2));
  EXPECT_ERROR(store->set("too large", std::string(kLongestMessage, 'x')), CommError,
               "cannot set 'too large': a key and its value may have 16777216 bytes");
  store->set("after", "it");
  EXPECT_EQ(store->get("after", 30s), "it");
}

TEST(Store, KeepsWhatWasSetWithEveryByte) {
  auto server = serve();
  auto one = rank_of(server->port()), other = rank_of(server->port());
  std::string bytes("a\0\xff z", 5);
  one->set("key", bytes);
  EXPECT_EQ(other->get("key", 1s), bytes);
  one->set("key", "");
  EXPECT_EQ(other->get("key", 1s), "");
}

TEST(Store, GetWaitsForAValueThatComesLater) {
  auto server = serve();
  auto one = rank_of(server->port()), other = rank_of(server->port());
  auto value = std::async(std::launch::async, [&] { return one->get("late", 30s); });
  EXPECT_EQ(value.wait_for(20ms), std::future_status::timeout);
  other->set("late", "here");
  EXPECT_EQ(value.get(), "here");
}

TEST(Store, WaitNeedsAllKeysAndNamesThoseThatNeverCame) {
  auto server = serve();
  auto store = rank_of(server->port());
  store->set("rank/0", "a");
  store->set("rank/2", "c");
  store->wait({"rank/0", "rank/2"}, 1s);
  try {
    store->wait({"rank/0", "rank/1", "rank/2", "rank/3"}, 50ms);
    FAIL() << "no error";
  } catch (const TimeoutError& error) {
    expect_mentions(error.what(), {"nobody has set 'rank/1', 'rank/3'", "0.05 s"});
  }
}

TEST(Store, ThreadsAddTogetherWithoutLoss) {
  auto server = serve();
  auto store = rank_of(server->port());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int j = 0; j < 50; ++j) store->add("count", 2);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store->add("count", -1), 399);
  EXPECT_EQ(store->get("count", 1s), "399");
}

TEST(Store, ManyThreadsMayWaitAtOnce) {
  auto server = serve();
  auto store = rank_of(server->port());
  std::atomic<int> done{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 32; ++i)
    threads.emplace_back([&, i] {
      store->get("go", 30s);
      store->set("done/" + std::to_string(i), "");
      ++done;
    });
  store->set("go", "");
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done, 32);
}

TEST(Store, AKeyIsTheFirstOnesWhoClaimsIt) {
  auto server = serve();
  auto store = rank_of(server->port());
  EXPECT_EQ(store->claim("place", "mine"), "mine");
  EXPECT_EQ(store->claim("place", "yours"), "mine");
  EXPECT_EQ(store->claim("place", "mine"), "mine");  // as often as an answer gets lost
}

TEST(Store, AddingToTextIsAnError) {
  auto server = serve();
  auto store = rank_of(server->port());
  store->set("name", "12 monkeys");
  EXPECT_ERROR(store->add("name", 1), CommError, "'name' holds text");
}

TEST(Store, TellsStrangersNothing) {
  auto server = serve();
  rank_of(server->port())->set("key", "value");
  for (const char* token : {"", "secre", "secret1", "secres"})
    EXPECT_ERROR(connect_store({.port = server->port(), .token = token, .generation = 0, .caller = "rank 0"}),
                 CommError, "the job's token is another one");
}

TEST(Store, RefusesRanksOfAnEarlierGeneration) {
  auto server = serve();
  auto old = rank_of(server->port());
  old->set("address", "before");
  auto waiting = std::async(std::launch::async, [&] { return old->get("never", 30s); });
  EXPECT_EQ(waiting.wait_for(20ms), std::future_status::timeout);
  server->begin_generation(1);
  const char* reason = "rank 1 belongs to generation 0 of this job, which is at 1";
  EXPECT_ERROR(waiting.get(), CommError, reason);
  EXPECT_ERROR(old->set("address", "after"), CommError, reason);
  EXPECT_ERROR(rank_of(server->port(), 0), CommError, reason);
  EXPECT_ERROR(rank_of(server->port(), 2), CommError, "only at 1");
  EXPECT_ERROR(rank_of(server->port(), 1)->get("address", 0ms), TimeoutError, "'address'");
}

TEST(Store, KeysOfLaunchersOutliveRestarts) {
  auto server = serve();
  auto launcher = launcher_of(server->port());
  launcher->set("plan", "2 nodes");
  server->begin_generation(1);
  EXPECT_EQ(launcher->get("plan", 1s), "2 nodes");
  EXPECT_ERROR(rank_of(server->port(), 1)->get("plan", 0ms), TimeoutError, "'plan'");
}

TEST(Store, IsReachedByNameAndOverIpv6) {
  auto server = serve("localhost");
  rank_of(server->port(), 0, "localhost")->set("key", "by name");
  if (!has_ipv6()) GTEST_SKIP() << "this host has no IPv6";
  auto server6 = serve("::1");
  rank_of(server6->port(), 0, "::1")->set("key", "value");
  EXPECT_EQ(rank_of(server6->port(), 0, "[::1]")->get("key", 1s), "value");
}

TEST(Store, ListensOnTheChosenAddressOnly) {
  auto server = serve("127.0.0.2");
  rank_of(server->port(), 0, "127.0.0.2");
  EXPECT_ERROR(connect_store({.port = server->port(), .connect_timeout = 60ms}), CommError, "Connection refused");
}

TEST(Store, SaysWhyItCannotListen) {
  auto server = serve();
  EXPECT_ERROR(serve_store({.port = server->port()}), CommError,
               "port " + std::to_string(server->port()) + " of 127.0.0.1 is in use");
  EXPECT_ERROR(serve_store({.address = "192.0.2.1"}), CommError, "192.0.2.1 is not an address of this host, which has");
  EXPECT_ERROR(serve_store({.address = "no-such-host.invalid"}), CommError, "'no-such-host.invalid' is not known");
}

TEST(Store, SaysWhomItCannotReach) {
  int port = serve()->port();  // free again at once
  try {
    connect_store({.port = port, .connect_timeout = 100ms});
    FAIL() << "no error";
  } catch (const CommError& error) {
    expect_mentions(error.what(), {"127.0.0.1:" + std::to_string(port), "within 0.1 s", "Connection refused", "lo"});
  }
  EXPECT_ERROR(connect_store({.host = "no-such-host.invalid", .port = 1, .connect_timeout = 0ms}), CommError,
               "no-such-host.invalid");
}

TEST(Store, KnowsAPortThatBelongsToAnotherProgram) {
  SilentListener other;
  EXPECT_ERROR(connect_store({.port = other.port, .connect_timeout = 300ms}), CommError, "not a store of Bonfire's");
}

TEST(Store, ClientWaitsForAServerThatComesLater) {
  int port = serve()->port();
  auto client = std::async(std::launch::async, [&] { return rank_of(port); });
  EXPECT_EQ(client.wait_for(30ms), std::future_status::timeout);
  auto server = serve_store({.port = port, .token = "secret"});
  client.get()->set("key", "value");
}

TEST(Store, AServerThatClosesEndsEveryWait) {
  auto server = serve();
  auto store = rank_of(server->port());
  auto value = std::async(std::launch::async, [&] { return store->get("never", 60s); });
  EXPECT_EQ(value.wait_for(20ms), std::future_status::timeout);
  server.reset();
  EXPECT_ERROR(value.get(), CommError, "is gone");
  EXPECT_ERROR(store->set("key", "value"), CommError, "is gone");
}

TEST(StoreProcess, AKilledServerEndsEveryWait) {
  ServerProgram server;
  auto store = rank_of(server.port);
  auto value = std::async(std::launch::async, [&] { return store->get("never", 60s); });
  EXPECT_EQ(value.wait_for(20ms), std::future_status::timeout);
  server.signal(SIGKILL);
  EXPECT_ERROR(value.get(), CommError, "is gone");
}

TEST(StoreProcess, AFrozenServerEndsEveryWait) {
  ServerProgram server;
  auto store = connect_store({.port = server.port, .token = "secret", .silence = 2s});
  store->set("key", "value");
  server.signal(SIGSTOP);
  EXPECT_ERROR(store->get("never", 60s), CommError, "is gone");
}

TEST(Store, TellsRanksAndItsOwnerWhoHasFallenSilent) {
  std::promise<std::pair<int, int64_t>> told;
  auto server = serve_store({.token = "secret",
                             .silence = 1s,
                             .on_frozen = [&, once = false](const LifeSign& rank, int64_t generation) mutable {
                               if (rank.rank == 1 && !std::exchange(once, true))
                                 told.set_value({rank.rank, generation});
                             }});
  server->begin_generation(2);
  auto store = rank_of(server->port(), 2);
  auto beat = [&](int rank) {
    return store->beat({.rank = rank, .name = fmt::format("rank {}", rank), .doing = "step 3, barrier"}, 10s);
  };
  EXPECT_TRUE(beat(1).empty());
  beat(2);
  store->farewell(2, 10s);
  auto future = told.get_future();
  while (future.wait_for(50ms) == std::future_status::timeout) beat(0);
  EXPECT_EQ(future.get(), (std::pair<int, int64_t>(1, 2)));
  auto of_one = [](const std::vector<LifeSign>& signs) {
    return std::count_if(signs.begin(), signs.end(), [](const LifeSign& sign) {
      return sign.rank == 1 && sign.name == "rank 1" && sign.doing == "step 3, barrier";
    });
  };
  EXPECT_EQ(of_one(beat(0)), 1);
  EXPECT_EQ(of_one(launcher_of(server->port())->beat_of_host(0, 0ms).frozen), 1);
  EXPECT_EQ(store->last_signs().size(), 2u);  // rank 2 has left
  server->begin_generation(3);
  EXPECT_TRUE(rank_of(server->port(), 3)->last_signs().empty());
  EXPECT_ERROR(beat(0), CommError, "belongs to generation 2 of this job, which is at 3");
}

}  // namespace bonfire::comm::store_test
