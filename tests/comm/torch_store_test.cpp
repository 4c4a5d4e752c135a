// The store of torchrun's agent, as PyTorch's TCPStore speaks.

#include "bonfire/comm/torch_store.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>

#include "bonfire/comm/network.h"
#include "tests/support/child_process.h"
#include "tests/support/expect_error.h"

namespace bonfire::comm::torch_store_test {
namespace {

using namespace std::chrono_literals;

// Knows the two questions that ranks ask; bytes as PyTorch 2.1 to 2.11 has them. Whoever speaks otherwise is hung up
// on.
class Agent {
 public:
  explicit Agent(const std::string& address = "127.0.0.1") : listener_(listen_on(address, 0)) {}
  ~Agent() {
    stop_ = true;
    thread_.join();
  }
  int port() const { return port_of(listener_); }

 private:
  void serve() {
    while (!stop_) {
      pollfd question{listener_.get(), POLLIN, 0};
      if (::poll(&question, 1, 20) <= 0) continue;
      FileDescriptor caller(::accept(listener_.get(), nullptr, nullptr));
      answer(caller.get());
    }
  }

  void answer(int caller) {
    if (number<uint8_t>(caller) != 0 || number<uint32_t>(caller) != 0x3C85F7CE) return;  // validate
    if (number<uint8_t>(caller) != 2) return;                                            // compare and set
    const std::string key = text(caller), expected = text(caller), desired = text(caller);
    const auto [entry, is_new] = values_.try_emplace(key, expected.empty() ? desired : expected);
    if (!is_new && entry->second == expected) entry->second = desired;
    const uint64_t count = entry->second.size();
    ::send(caller, &count, sizeof count, MSG_NOSIGNAL);
    ::send(caller, entry->second.data(), count, MSG_NOSIGNAL);
  }

  template <class Number>
  static Number number(int caller) {
    Number value{};
    ::recv(caller, &value, sizeof value, MSG_WAITALL);
    return value;
  }
  static std::string text(int caller) {
    std::string text(number<uint64_t>(caller) % 1024, 0);
    ::recv(caller, text.data(), text.size(), MSG_WAITALL);
    return text;
  }

  FileDescriptor listener_;
  std::map<std::string, std::string> values_;
  std::atomic<bool> stop_{false};
  std::thread thread_{[this] { serve(); }};
};

TEST(TorchStore, TheFirstValueIsEveryones) {
  Agent agent;
  EXPECT_EQ(first_in_torch_store({"127.0.0.1", agent.port(), 5s}, "token", "one"), "one");
  EXPECT_EQ(first_in_torch_store({"localhost", agent.port(), 5s}, "token", "another"), "one");
  EXPECT_EQ(first_in_torch_store({"127.0.0.1", agent.port(), 5s}, "else", "two"), "two");
}

TEST(TorchStore, SomebodyElseAtItsPortGivesNothing) {
  const FileDescriptor listener = listen_on("127.0.0.1", 0);
  std::thread other([&] {
    for (int i = 0; i < 2; ++i) {  // one call to see who is there, one to ask
      pollfd question{listener.get(), POLLIN, 0};
      ::poll(&question, 1, 5000);
      FileDescriptor caller(::accept(listener.get(), nullptr, nullptr));
      ::send(caller.get(), "HTTP/1.0 400 Bad Request\r\n\r\n", 28, MSG_NOSIGNAL);
    }
  });
  EXPECT_EQ(first_in_torch_store({"127.0.0.1", port_of(listener), 5s}, "token", "one"), std::nullopt);
  other.join();
  EXPECT_ERROR(first_in_torch_store({"127.0.0.1", 1, 200ms}, "token", "one"), CommError, "127.0.0.1:1");
}

// As torchrun starts one rank on each of two hosts.
TEST(TorchStore, RanksOfSeveralHostsHandEachOtherAToken) {
  const std::vector<Interface> all = interfaces();
  const auto outer = std::find_if(all.begin(), all.end(), [](const Interface& one) { return !one.loopback; });
  if (outer == all.end()) GTEST_SKIP() << "this host has no address but its own";
  Agent agent(outer->address);
  auto rank = [&](int number) {
    return std::make_unique<testing::ChildProcess>(
        std::vector<std::string>{testing::program_beside("rank_program"), "meet", "20"},
        testing::ChildProcess::Variables{{"RANK", std::to_string(number)},
                                         {"WORLD_SIZE", "2"},
                                         {"LOCAL_RANK", "0"},
                                         {"LOCAL_WORLD_SIZE", "1"},
                                         {"MASTER_ADDR", outer->address},
                                         {"MASTER_PORT", std::to_string(agent.port())},
                                         {"BONFIRE_TOKEN", ""},
                                         {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  };
  auto zero = rank(0), one = rank(1);
  EXPECT_EQ(zero->wait(), 0) << zero->output();
  EXPECT_EQ(one->wait(), 0) << one->output();
  EXPECT_EQ(zero->output().find("has no token"), std::string::npos) << zero->output();
}

}  // namespace
}  // namespace bonfire::comm::torch_store_test
