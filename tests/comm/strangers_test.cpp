// What callers that do not belong to the job can do to it.

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <future>
#include <thread>

#include "bonfire/comm/network.h"
#include "bonfire/comm/rendezvous.h"
#include "bonfire/comm/store_client.h"
#include "bonfire/comm/store_server.h"
#include "tests/comm/http2_stranger.h"
#include "tests/support/child_process.h"
#include "tests/support/expect_error.h"
#include "tests/support/free_port.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::comm::strangers_test {
namespace {

using namespace std::chrono_literals;
using testing::ChildProcess;
using testing::expect_mentions;
using testing::free_port;
using testing::Http2Stranger;
using testing::program_beside;
using testing::ScratchFolder;

// MiB that a process holds now.
size_t memory_of(int process) {
  std::ifstream stream("/proc/" + std::to_string(process) + "/statm");
  size_t size = 0, resident = 0;
  stream >> size >> resident;
  return resident * static_cast<size_t>(::getpagesize()) >> 20;
}

struct ServerProgram : ChildProcess {
  ServerProgram() : ChildProcess({program_beside("store_server_program")}), port(std::stoi(read_line())) {}
  int port;
};

TEST(Strangers, ThatSendTheStoreMuchMakeItHoldNothing) {
  ServerProgram server;
  connect_store({.port = server.port, .token = "secret"})->set("key", "value");
  const size_t before = memory_of(server.pid());
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<Http2Stranger>> strangers;
  for (int i = 0; i < 6; ++i) strangers.push_back(std::make_unique<Http2Stranger>(server.port));
  for (auto& stranger : strangers) threads.emplace_back([&] { stranger->send_messages(8, 15 << 20); });
  for (std::thread& thread : threads) thread.join();
  const size_t after = memory_of(server.pid());
  EXPECT_LT(after, before + 16) << "MiB, where there were " << before;
  for (auto& stranger : strangers) EXPECT_FALSE(stranger->heard_anything());  // gRPC's words are for the job
  EXPECT_EQ(connect_store({.port = server.port, .token = "secret"})->get("key", 10s), "value");
}

TEST(Strangers, HeartbeatsOfRanksThatDoNotExistAreNotHeard) {
  std::promise<void> one_is_frozen;
  std::atomic<int> others = 0;
  auto server =
      serve_store({.token = "secret", .ranks = 2, .silence = 1s, .on_frozen = [&](const LifeSign& rank, int64_t) {
                     if (rank.rank == 1)
                       one_is_frozen.set_value();
                     else
                       ++others;
                   }});
  auto store = connect_store({.port = server->port(), .token = "secret", .generation = 0});
  for (int rank : {99, 2, -1}) store->beat({.rank = rank, .name = "forged"}, 10s);
  store->beat({.rank = 1, .name = "rank 1"}, 10s);
  one_is_frozen.get_future().wait();
  EXPECT_EQ(others, 0);
  EXPECT_EQ(store->last_signs().size(), 1u);
  server->expect_ranks(3);
  store->beat({.rank = 2, .name = "rank 2"}, 10s);
  EXPECT_EQ(store->last_signs().size(), 2u);
}

// A rank that somebody else starts, and gives no token.
ChildProcess::Variables without_token(int rank, int port, const std::string& cache, const std::string& master) {
  return {{"RANK", std::to_string(rank)}, {"WORLD_SIZE", "2"},      {"LOCAL_RANK", std::to_string(rank)},
          {"MASTER_ADDR", master},        {"LOCAL_WORLD_SIZE", ""}, {"MASTER_PORT", std::to_string(port)},
          {"BONFIRE_TOKEN", ""},          {"BONFIRE_CACHE", cache}};
}

std::vector<std::string> meeting() { return {program_beside("rank_program"), "meet", "60"}; }

TEST(Strangers, AreKeptOutOfAJobOfOneHostThatWasGivenNoToken) {
  const ScratchFolder cache;
  const int port = free_port();
  ChildProcess zero(meeting(), without_token(0, port, cache.path(), "127.0.0.1"));
  for (const char* token : {"", "guess"})
    EXPECT_ERROR(connect_store({.port = port, .token = token, .generation = 0}), CommError,
                 "the job's token is another one");
  for (const auto& file : std::filesystem::directory_iterator(cache.path()))
    EXPECT_EQ(file.status().permissions() & std::filesystem::perms(077), std::filesystem::perms::none);
  ChildProcess one(meeting(), without_token(1, port, cache.path(), "127.0.0.1"));
  EXPECT_EQ(one.wait(), 0) << one.output();
  EXPECT_EQ(zero.wait(), 0) << zero.output();
  EXPECT_EQ(zero.output().find("no token"), std::string::npos) << zero.output();
  EXPECT_TRUE(std::filesystem::is_empty(cache.path()));
}

TEST(Strangers, ATokenOfAnEarlierJobDoesNotConfuseTheNext) {
  const ScratchFolder cache;
  const int port = free_port();
  auto files = [&] {
    std::vector<std::filesystem::path> all;
    for (const auto& file : std::filesystem::directory_iterator(cache.path())) all.push_back(file.path());
    return all;
  };
  {
    ChildProcess killed(meeting(), without_token(0, port, cache.path(), "127.0.0.1"));
    while (files().empty() || files()[0].string().ends_with(std::to_string(killed.pid())))
      std::this_thread::sleep_for(10ms);
  }
  ASSERT_EQ(files().size(), 1u);
  ChildProcess one(meeting(), without_token(1, port, cache.path(), "127.0.0.1")),
      zero(meeting(), without_token(0, port, cache.path(), "127.0.0.1"));
  EXPECT_EQ(one.wait(), 0) << one.output();
  EXPECT_EQ(zero.wait(), 0) << zero.output();
}

TEST(Strangers, ARankThatCannotSeeTheTokenSaysWhatToDo) {
  const ScratchFolder cache, other;
  const int port = free_port();
  ChildProcess zero(meeting(), without_token(0, port, cache.path(), "127.0.0.1"));
  ChildProcess one(meeting(), without_token(1, port, other.path(), "127.0.0.1"));
  EXPECT_NE(one.wait(), 0);
  expect_mentions(one.output(), {"rank 0 keeps strangers out of the store", "or set BONFIRE_TOKEN to the same secret"});
}

TEST(Strangers, AnOpenPortIsSaidToBeOpen) {
  std::string address;
  for (const Interface& one : interfaces())
    if (!one.loopback && one.address.find(':') == std::string::npos) address = one.address;
  if (address.empty()) GTEST_SKIP() << "this host has the loopback device only";
  const ScratchFolder cache;
  const int port = free_port();
  ChildProcess zero(meeting(), without_token(0, port, cache.path(), address)),
      one(meeting(), without_token(1, port, cache.path(), address));
  EXPECT_EQ(one.wait(), 0) << one.output();
  EXPECT_EQ(zero.wait(), 0) << zero.output();
  expect_mentions(zero.output(), {"bonfire: this job has no token: whoever reaches " + host_and_port(address, port) +
                                  " can join it; to close it, set BONFIRE_TOKEN"});
  EXPECT_EQ(one.output().find("no token"), std::string::npos) << one.output();
}

}  // namespace
}  // namespace bonfire::comm::strangers_test
