#include "bonfire/comm/gate.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "bonfire/comm/network.h"

namespace bonfire::comm::gate_test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// A gate that somebody looks after.
class Kept {
 public:
  explicit Kept(GateOptions options = {}) : gate_(with_pass(std::move(options))), port(gate_.port()) {
    thread_ = std::thread([this] {
      while (!stop_) {
        pollfd question{gate_.descriptor(), POLLIN, 0};
        if (::poll(&question, 1, 10) <= 0) continue;
        for (Gate::Caller& caller : gate_.take()) {
          std::lock_guard lock(mutex_);
          callers_.push_back(std::move(caller));
        }
      }
    });
  }
  ~Kept() {
    stop_ = true;
    thread_.join();
  }
  std::vector<std::string> names() {
    std::lock_guard lock(mutex_);
    std::vector<std::string> all;
    for (const Gate::Caller& caller : callers_) all.push_back(caller.name);
    return all;
  }

 private:
  static GateOptions with_pass(GateOptions options) {
    options.pass = "open sesame";
    return options;
  }
  Gate gate_;
  std::mutex mutex_;
  std::vector<Gate::Caller> callers_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;

 public:
  const int port;
};

FileDescriptor connect_from(const char* from, int port) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  ::inet_pton(AF_INET, from, &address.sin_addr);
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    throw std::runtime_error("cannot bind");
  ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    throw std::runtime_error("cannot connect");
  return socket;
}

void say(const FileDescriptor& socket, const std::string& text) {
  ::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
}

// Whether the other end lets go of it, in 20 s.
bool dropped(const FileDescriptor& socket) {
  pollfd question{socket.get(), POLLRDHUP, 0};
  return ::poll(&question, 1, 20'000) == 1;
}

Answer::Kind knock_with(const std::string& pass, int port) {
  return knock("127.0.0.1", port, "rank-3", pass, Clock::now() + 20s).kind;
}

TEST(Gate, LetsInWhoShowsThePassAndNobodyElse) {
  Kept gate;
  EXPECT_EQ(knock_with("open sesame", gate.port), Answer::Kind::welcome);
  for (const char* pass : {"", "open sesam", "open sesame!", "open barley"})
    EXPECT_EQ(knock_with(pass, gate.port), Answer::Kind::refused) << pass;
  EXPECT_EQ(gate.names(), std::vector<std::string>{"rank-3"});
}

TEST(Gate, WhatComesAfterTheAnswerIsTheCallers) {
  Gate gate({.pass = "open sesame"});
  FileDescriptor caller = knock_only("127.0.0.1", gate.port(), "one", "open sesame", Clock::now() + 20s);
  std::vector<Gate::Caller> in;
  while (in.empty()) in = gate.take();
  const std::string more = "what is said after the answer";
  ::send(in[0].socket.get(), more.data(), more.size(), MSG_NOSIGNAL);
  std::string heard;
  while (!heard.ends_with(more)) {
    pollfd question{caller.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&question, 1, 20'000), 1) << heard;
    char byte;
    ASSERT_EQ(::recv(caller.get(), &byte, 1, 0), 1) << heard;
    heard += byte;
  }
  EXPECT_TRUE(heard.starts_with("HTTP/1.0 200 OK\r\n")) << heard;
}

TEST(Gate, DropsStrangersThatDoNotComeToThePoint) {
  Kept gate({.patience = 100ms});
  const FileDescriptor silent = connect_from("127.0.0.1", gate.port), slow = connect_from("127.0.0.1", gate.port);
  say(slow, "CONNECT rank-3 HTT");
  EXPECT_TRUE(dropped(silent));
  EXPECT_TRUE(dropped(slow));
  EXPECT_EQ(knock_with("open sesame", gate.port), Answer::Kind::welcome);
}

TEST(Gate, DropsStrangersThatSpeakAnotherLanguageOrTooLong) {
  Kept gate({.patience = 1h});
  const FileDescriptor grpc = connect_from("127.0.0.1", gate.port), talker = connect_from("127.0.0.1", gate.port),
                       eager = connect_from("127.0.0.1", gate.port);
  say(grpc, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  say(talker, "CONNECT " + std::string(100'000, 'x'));
  say(eager, "CONNECT x HTTP/1.0\r\nbonfire-pass: open sesame\r\n\r\nand more at once");
  EXPECT_TRUE(dropped(grpc));
  EXPECT_TRUE(dropped(talker));
  EXPECT_TRUE(dropped(eager));
  EXPECT_TRUE(gate.names().empty());
}

TEST(Gate, AnyNumberOfStrangersHaveAFewDescriptors) {
  Kept gate({.strangers = 8, .patience = 1h});
  std::vector<FileDescriptor> strangers;
  for (int i = 0; i < 100; ++i) strangers.push_back(connect_from("127.0.0.1", gate.port));
  EXPECT_EQ(knock_with("open sesame", gate.port), Answer::Kind::welcome);
  auto left = [&] {
    return std::count_if(strangers.begin(), strangers.end(), [](const FileDescriptor& one) {
      pollfd question{one.get(), POLLRDHUP, 0};
      return ::poll(&question, 1, 0) == 0;
    });
  };
  EXPECT_LE(left(), 8);
}

TEST(Gate, ThoseOfOneHostKeepNobodyElseOut) {
  Kept gate({.strangers = 8, .patience = 1h});
  const FileDescriptor rank = connect_from("127.0.0.2", gate.port);
  say(rank, "CONNECT rank-3 HTTP/1.0\r\n");
  std::vector<FileDescriptor> strangers;
  for (int i = 0; i < 100; ++i) strangers.push_back(connect_from("127.0.0.1", gate.port));
  EXPECT_TRUE(dropped(strangers[0]));
  say(rank, "bonfire-pass: open sesame\r\n\r\n");
  char answer[12] = "";
  EXPECT_EQ(::recv(rank.get(), answer, sizeof answer, MSG_WAITALL), 12);
  EXPECT_EQ(std::string(answer, 12), "HTTP/1.0 200");
}

TEST(Gate, APortWhereNobodyListensIsGivenUp) {
  const int port = Gate({}).port();  // free again
  EXPECT_EQ(knock("127.0.0.1", port, "rank-3", "open sesame", Clock::now() + 60min).kind, Answer::Kind::none);
}

}  // namespace
}  // namespace bonfire::comm::gate_test
