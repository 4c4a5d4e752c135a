#include "bonfire/comm/tls.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "bonfire/comm/network.h"
#include "bonfire/comm/store_client.h"
#include "bonfire/comm/store_server.h"
#include "tests/support/certificates.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::comm::tls_test {
namespace {

using namespace std::chrono_literals;
using testing::Certificates;
using testing::ScratchFolder;

Tls tls_of(const std::vector<std::pair<std::string, std::string>>& variables) {
  const std::map<std::string, std::string> all(variables.begin(), variables.end());
  return read_tls([&](const char* name) {
    auto found = all.find(name);
    return found == all.end() ? nullptr : found->second.c_str();
  });
}

// Hands bytes on between a port of its own and another, and keeps what it has seen.
class Wiretap {
 public:
  explicit Wiretap(int port) : listener_(listen_on("127.0.0.1", 0)), target_(port) {
    thread_ = std::thread([this] { run(); });
  }
  ~Wiretap() { stop(); }

  int port() const { return port_of(listener_); }
  std::string stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return seen_;
  }

 private:
  void run() {
    std::vector<std::pair<FileDescriptor, FileDescriptor>> calls;
    while (!stop_) {
      FileDescriptor made(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (made.get() >= 0)
        calls.emplace_back(std::move(made), call("127.0.0.1", target_, std::chrono::steady_clock::now() + 5s));
      bool moved = false;
      for (auto& [one, other] : calls) moved = hand_on(one, other) | hand_on(other, one) | moved;
      if (!moved) std::this_thread::sleep_for(1ms);
    }
  }
  bool hand_on(FileDescriptor& from, FileDescriptor& to) {
    char bytes[65536];
    const ssize_t count = ::recv(from.get(), bytes, sizeof bytes, 0);
    if (count == 0) ::shutdown(to.get(), SHUT_WR);
    if (count <= 0) return false;
    seen_.append(bytes, static_cast<size_t>(count));
    ::send(to.get(), bytes, static_cast<size_t>(count), MSG_NOSIGNAL);
    return true;
  }

  FileDescriptor listener_;
  int target_;
  std::string seen_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

std::string seen_of_a_job(const Tls& tls) {
  auto server = serve_store({.token = "the job's own token", .tls = tls});
  Wiretap tap(server->port());
  {
    auto store = connect_store({.port = tap.port(), .token = "the job's own token", .tls = tls, .generation = 0});
    store->set("key", "what nobody else should read");
    EXPECT_EQ(store->get("key", 30s), "what nobody else should read");
  }
  return tap.stop();
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(StoreTls, WhoListensReadsNeitherValuesNorTheToken) {
  if (!Certificates::can_be_made()) GTEST_SKIP() << "the openssl program is needed";
  const std::string plain = seen_of_a_job({});
  EXPECT_TRUE(contains(plain, "what nobody else should read"));
  EXPECT_TRUE(contains(plain, "the job's own token"));
  const Certificates job("job");
  const std::string secret = seen_of_a_job(tls_of(job.variables("127.0.0.1")));
  EXPECT_GT(secret.size(), 1'000u);
  EXPECT_FALSE(contains(secret, "what nobody else should read"));
  EXPECT_FALSE(contains(secret, "the job's own token"));
}

TEST(StoreTls, BothEndsMustBelieveTheOther) {
  if (!Certificates::can_be_made()) GTEST_SKIP() << "the openssl program is needed";
  const Certificates job("job"), other("other");
  auto server = serve_store({.token = "secret", .tls = tls_of(job.variables("127.0.0.1"))});
  auto connect = [&](const Tls& tls) {
    return connect_store({.port = server->port(), .token = "secret", .tls = tls, .generation = 0});
  };
  connect(tls_of(job.variables("rank-1")))->set("key", "value");  // who calls may have any name
  EXPECT_ERROR(connect(tls_of(other.variables("127.0.0.1"))), CommError, "no TLS with the store at 127.0.0.1:");
  Tls forged = tls_of(other.variables("127.0.0.1"));  // it believes the store, but the store not it
  forged.authorities = tls_of(job.variables("127.0.0.1")).authorities;
  EXPECT_ERROR(connect(forged), CommError, "no TLS with the store at 127.0.0.1:");
  EXPECT_ERROR(connect({}), CommError, "uses TLS, but this process does not; set BONFIRE_TLS_CERT");
  auto plain = serve_store({.token = "secret"});
  EXPECT_ERROR(connect_store({.port = plain->port(), .token = "secret", .tls = tls_of(job.variables("127.0.0.1"))}),
               CommError, "this process uses TLS, but the store at 127.0.0.1:");
}

TEST(StoreTls, TheStoresCertificateMustBeForItsName) {
  if (!Certificates::can_be_made()) GTEST_SKIP() << "the openssl program is needed";
  const Certificates job("job");
  auto server = serve_store({.token = "secret", .tls = tls_of(job.variables("localhost"))});
  const Tls mine = tls_of(job.variables("rank-1"));
  connect_store({.host = "localhost", .port = server->port(), .token = "secret", .tls = mine})->set("key", "value");
  EXPECT_ERROR(connect_store({.port = server->port(), .token = "secret", .tls = mine}), CommError,
               "is the store's one for this name?");
}

TEST(StoreTls, ItsFilesAreThereAllOrNone) {
  const ScratchFolder folder;
  const std::string pem = folder.put("pem", "-----BEGIN CERTIFICATE-----\n").string();
  EXPECT_FALSE(tls_of({}).on());
  EXPECT_TRUE(tls_of({{"BONFIRE_TLS_CERT", pem}, {"BONFIRE_TLS_KEY", pem}, {"BONFIRE_TLS_CA", pem}}).on());
  EXPECT_ERROR(tls_of({{"BONFIRE_TLS_CERT", pem}, {"BONFIRE_TLS_CA", pem}}), ConfigError,
               "[tls] BONFIRE_TLS_KEY is not set, though its companions are");
  EXPECT_ERROR(tls_of({{"BONFIRE_TLS_CERT", folder.put("text", "hello").string()}}), ConfigError, "is no PEM file");
  EXPECT_ERROR(serve_store({.tls = {pem, pem, pem}}), ConfigError, "there is no TLS with what BONFIRE_TLS_CERT");
}

}  // namespace
}  // namespace bonfire::comm::tls_test
