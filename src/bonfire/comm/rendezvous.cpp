#include "bonfire/comm/rendezvous.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "bonfire/base/error.h"
#include "bonfire/base/log.h"
#include "bonfire/comm/gate.h"
#include "bonfire/comm/mpi/mpi_group.h"
#include "bonfire/comm/network.h"
#include "bonfire/comm/secret.h"
#include "bonfire/comm/store_client.h"
#include "bonfire/comm/store_server.h"
#include "bonfire/comm/tls.h"
#include "bonfire/comm/token_file.h"
#include "bonfire/comm/torch_store.h"
#include "bonfire/comm/wait_notice.h"

namespace bonfire::comm {

namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

constexpr auto kTokenFile = 10s;  // for it to be there, after the port is open

std::string key_of(int rank) { return fmt::format("rendezvous/rank/{}", rank); }

std::vector<std::string> keys_of_all(int world, const char* kind) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < world; ++rank) keys.push_back(fmt::format("rendezvous/{}/{}", kind, rank));
  return keys;
}

std::shared_ptr<StoreServer> serve(const Environment& e) {
  std::string address = resolve(e.master_address);
  if (e.local_world < e.world && is_loopback(address))
    throw_error<ConfigError>(
        "[rendezvous] MASTER_ADDR '{}' is {} on this host, which other hosts cannot reach; give the address of one of "
        "its interfaces: {}",
        e.master_address, address, list_of(interfaces()));
  return serve_store({.address = address, .port = e.store_port, .token = e.token, .tls = read_tls(), .ranks = e.world});
}

void say_that_the_port_is_open(const Environment& e) {
  base::log_warning(
      "bonfire: this job has no token: whoever reaches {} can join it; to close it, set BONFIRE_TOKEN to the same "
      "secret "
      "for all ranks (openssl rand -hex 16 makes one)",
      host_and_port(e.master_address, e.store_port));
}

// Rank 0's, which holds the store. A token that it makes is in a file while the store is there.
std::shared_ptr<StoreServer> open_store(Environment& e) {
  std::shared_ptr<TokenFile> file = TokenFile::needed(e) ? TokenFile::of_port(e.store_port) : nullptr;
  if (file != nullptr) e.token = random_secret();
  std::shared_ptr<StoreServer> server = serve(e);
  if (e.token.empty()) say_that_the_port_is_open(e);
  if (file != nullptr) file->write(e.token);
  StoreServer* held = server.get();
  return {held, [server = std::move(server), file = std::move(file)](StoreServer*) {}};
}

// The token that rank 0 has made for the ranks of this host; "" where there is none to be had.
std::string token_of_rank_zero(const Environment& e, milliseconds timeout) {
  const std::unique_ptr<TokenFile> file = TokenFile::of_port(e.store_port);
  if (file == nullptr) return {};
  const std::string where = host_and_port(e.master_address, e.store_port);
  WaitNotice notice(fmt::format("rank {}", e.rank));
  const Route route = reach(e.master_address, e.store_port, timeout, {}, [&](const std::string& reasons) {
    notice.look([&] { return fmt::format("rank 0 to open the store at {} ({})", where, reasons); });
  });
  for (auto end = WaitNotice::Clock::now() + kTokenFile; WaitNotice::Clock::now() < end;) {
    const std::optional<std::string> token = file->read();  // an earlier job's, perhaps
    if (token && knock(route.remote, e.store_port, "store", pass_of(*token), end).kind != Answer::Kind::refused)
      return *token;
    std::this_thread::sleep_for(50ms);  // it is written as soon as the port is open
  }
  throw_error<CommError>(
      "[rendezvous] rank 0 keeps strangers out of the store at {} by a token in '{}', which this rank does not see; "
      "run "
      "all ranks as one user with one home, or set BONFIRE_TOKEN to the same secret for all of them",
      where, file->path().string());
}

// The token that the ranks of all hosts hand each other through torchrun's own store; "" where that is not to be had.
// Whoever makes it: after a restart it is the one that stands there.
std::string token_of_agent(const Environment& e, milliseconds timeout) {
  return first_in_torch_store({e.master_address, e.agent_port, timeout}, "bonfire/token", random_secret()).value_or("");
}

// A store that, when it is dropped, says farewell; the server of rank 0 leaves last, so that nobody's fails.
std::shared_ptr<Store> with_farewell(std::shared_ptr<Store> client, std::shared_ptr<StoreServer> server,
                                     const Environment& e) {
  Store* store = client.get();
  return {store, [client = std::move(client), server = std::move(server), e](Store*) mutable {
            try {
              client->set(fmt::format("rendezvous/left/{}", e.rank), "");
              if (server != nullptr && std::uncaught_exceptions() == 0) client->wait(keys_of_all(e.world, "left"), 5s);
            } catch (const Error&) {  // who died says no farewell
            }
            client.reset();
            server.reset();
          }};
}

// The interface that was chosen by hand, else the one that reaches the store.
std::string own_address(const Environment& e, milliseconds timeout) {
  for (const char* variable : {"BONFIRE_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"})
    if (const char* choice = std::getenv(variable); choice != nullptr && *choice != 0) {
      std::string address = choose_address(choice, interfaces());
      return reach(e.master_address, e.store_port, std::min(timeout, milliseconds(3'000)), address).local;
    }
  return reach(e.master_address, e.store_port, timeout).local;
}

std::string described(const std::string& address, const Settings& settings) {
  return nlohmann::json{{"host", host_name()},   {"address", address},           {"machine", machine_id()},
                        {"process", ::getpid()}, {"version", library_version()}, {"settings", encode(settings)}}
      .dump();
}

Peer peer_from(int rank, const std::string& text) {
  nlohmann::json words = nlohmann::json::parse(text);
  if (words.at("version") != library_version())
    throw_error<CommError>("[rendezvous] rank {} on {} runs Bonfire {}, this rank {}; install one version everywhere",
                           rank, words.at("host").get<std::string>(), words.at("version").get<std::string>(),
                           library_version());
  return {rank, words.at("host"), words.at("address"), words.at("machine"), words.at("process")};
}

struct RollCall {
  std::vector<std::string> here;  // "1 on node0"
  std::vector<int> missing;
};

RollCall call_the_roll(Store& store, int world) {
  RollCall roll;
  for (int rank = 0; rank < world; ++rank) {
    try {
      roll.here.push_back(fmt::format("{} on {}", rank, peer_from(rank, store.get(key_of(rank), 0ms)).host));
    } catch (const TimeoutError&) {
      roll.missing.push_back(rank);
    }
  }
  return roll;
}

void wait_for_all(Store& store, const Environment& e, milliseconds timeout) {
  const auto deadline = WaitNotice::Clock::now() + timeout;
  WaitNotice notice(fmt::format("rank {}", e.rank));
  for (;;) {
    const auto end = std::min(deadline, notice.next());
    try {
      const auto left = std::chrono::ceil<milliseconds>(end - WaitNotice::Clock::now());
      return store.wait(keys_of_all(e.world, "rank"), std::max(left, 0ms));
    } catch (const TimeoutError&) {
      if (WaitNotice::Clock::now() >= deadline) break;
    }
    notice.look([&] {
      const RollCall roll = call_the_roll(store, e.world);
      return fmt::format("{} of {} (here: {})", list_of_ranks(roll.missing), e.world, fmt::join(roll.here, ", "));
    });
  }
  const RollCall roll = call_the_roll(store, e.world);
  throw_error<TimeoutError>(
      "[rendezvous] of {} ranks these never came within {} s: {} (here: {}); look at what they print, and whether all "
      "hosts were started",
      e.world, static_cast<double>(timeout.count()) / 1000, fmt::join(roll.missing, ", "), fmt::join(roll.here, ", "));
}

// Before groups are made, which ranks with other settings would never become. Nobody leaves before all have read: who
// does may take the store along, and whoever started the ranks ends the others.
[[noreturn]] void refuse(Store& store, const Environment& e, const std::string& difference) {
  store.set(fmt::format("rendezvous/compared/{}", e.rank), "");
  try {
    store.wait(keys_of_all(e.world, "compared"), 5s);
  } catch (const Error&) {  // one died meanwhile
  }
  throw_error<ConfigError>("[fleet] the ranks differ: {}; give all ranks the same", difference);
}

void count_local_ranks(Rendezvous& job) {
  const std::string& here = job.peers.at(static_cast<size_t>(job.environment.rank)).machine;
  job.environment.local_world = static_cast<int>(
      std::count_if(job.peers.begin(), job.peers.end(), [&](const Peer& peer) { return peer.machine == here; }));
  job.environment.knows_local_world = true;
}

}  // namespace

std::string library_version() { return BONFIRE_VERSION; }

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = "";
  ::gethostname(name, HOST_NAME_MAX);
  return name;
}

std::string process_name(int rank) { return fmt::format("rank {} ({}, process {})", rank, host_name(), ::getpid()); }

std::string machine_id() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code error;
  return boot + " " + std::filesystem::read_symlink("/proc/self/ns/net", error).string();
}

Rendezvous meet(const Environment& environment, const MeetOptions& options) {
  if (environment.starter == Starter::nobody)
    return {environment, {{0, host_name(), "127.0.0.1", machine_id(), ::getpid()}}, nullptr};
  Environment e = environment;
  if (e.token.empty() && e.agent_port > 0 && !TokenFile::needed(e)) e.token = token_of_agent(e, options.timeout);
  // An MPI that gives its processes no secret can carry one.
  if (e.token.empty() && e.starter == Starter::mpirun && !TokenFile::needed(e))
    e.token = text_over_mpi(random_secret(), options.timeout);
  std::shared_ptr<StoreServer> server = e.holds_store() ? open_store(e) : nullptr;
  if (server != nullptr) e.store_port = server->port();
  if (server == nullptr && TokenFile::needed(e)) e.token = token_of_rank_zero(e, options.timeout);
  std::shared_ptr<Store> store =
      connect_store({.host = e.master_address,
                     .port = e.store_port,
                     .token = e.token,
                     .tls = read_tls(),
                     .generation = e.generation,
                     .caller = fmt::format("rank {}", e.rank),
                     .holder = e.starter == Starter::bonfire ? "node 0's launcher" : "rank 0",
                     .connect_timeout = options.timeout,
                     .silence = e.node_timeout});
  if (e.starter != Starter::bonfire) store = with_farewell(std::move(store), std::move(server), e);

  store->set(key_of(e.rank), described(own_address(e, options.timeout), options.settings));
  wait_for_all(*store, e, options.timeout);
  Rendezvous job{e, {}, store};
  std::vector<Settings> settings;
  for (int rank = 0; rank < e.world; ++rank) {
    const std::string text = store->get(key_of(rank), 30s);
    job.peers.push_back(peer_from(rank, text));
    settings.push_back(decode_settings(nlohmann::json::parse(text).at("settings")));
  }
  if (const std::string difference = difference_in_words(settings); !difference.empty()) refuse(*store, e, difference);
  if (!e.knows_local_world) count_local_ranks(job);
  return job;
}

}  // namespace bonfire::comm
