#include "bonfire/comm/store_client.h"

#include <fmt/format.h>
#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <sys/random.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include "bonfire/base/error.h"
#include "bonfire/comm/gate.h"
#include "bonfire/comm/network.h"
#include "bonfire/comm/secret.h"
#include "bonfire/comm/store.grpc.pb.h"
#include "bonfire/comm/wait_notice.h"

namespace bonfire::comm {

namespace {

using grpc::Status;
using grpc::StatusCode;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

double seconds(milliseconds time) { return static_cast<double>(time.count()) / 1000; }

constexpr const char* kCallerAtGate = "store";

// "[::1]" is ::1
std::string bare(const std::string& host) {
  return host.starts_with('[') && host.ends_with(']') ? host.substr(1, host.size() - 2) : host;
}

// A literal as gRPC's names have it: no look-up, and no proxy.
std::string target_of(const std::string& literal, int port) {
  if (literal.find(':') == std::string::npos) return fmt::format("ipv4:{}:{}", literal, port);
  std::string encoded;
  for (char c : literal) encoded += c == '%' ? std::string("%25") : std::string(1, c);
  return fmt::format("ipv6:[{}]:{}", encoded, port);
}

milliseconds pings_after(milliseconds silence) {
  return std::clamp(silence / 4, milliseconds(500), milliseconds(5'000));
}

std::shared_ptr<grpc::ChannelCredentials> credentials_of(const Tls& tls) {
  if (!tls.on()) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({tls.authorities, tls.key, tls.certificate});
}

grpc::ChannelArguments channel_arguments(const StoreClientOptions& options) {
  const milliseconds silence = options.silence;
  grpc::ChannelArguments arguments;
  // What gRPC says to a proxy, it says to the store's gate.
  arguments.SetString("grpc.http_connect_server", kCallerAtGate);
  arguments.SetString("grpc.http_connect_headers", fmt::format("{}:{}", kPassHeader, pass_of(options.token)));
  if (options.tls.on()) arguments.SetSslTargetNameOverride(bare(options.host));  // not that of the address it has
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 3000);  // the least time in which one may connect
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  // A connection to a server that is frozen, or over a link that was cut, is given up after the sum of these at the
  // latest, and another one tried: it comes through as soon as the link is back, while what waits in the old one would
  // be sent again ever more rarely. Whether the server is given up is decided in GrpcStore::made.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(pings_after(silence).count()));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(pings_after(silence).count()));
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  // Each client has a connection of its own.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return arguments;
}

class GrpcStore final : public Store {
 public:
  explicit GrpcStore(const StoreClientOptions& options)
      : where_(host_and_port(options.host, options.port)),
        port_(options.port),
        call_timeout_(options.call_timeout),
        silence_(options.silence) {
    gpr_set_log_function([](gpr_log_func_args*) {});  // what goes wrong is said in our own words
    caller_.set_token(options.token);
    caller_.set_name(options.caller);
    if (options.generation) caller_.set_generation(*options.generation);

    const auto end = Clock::now() + options.connect_timeout;
    WaitNotice notice(options.caller);
    Route route = reach(options.host, options.port, options.connect_timeout, {}, [&](const std::string& reasons) {
      if (options.holder.empty()) return;
      notice.look([&] { return fmt::format("{} to open the store at {} ({})", options.holder, where_, reasons); });
    });
    const auto now = Clock::now();  // a busy host may take a while to answer
    const auto deadline = std::clamp(end, now + milliseconds(2'000), now + milliseconds(10'000));
    literal_ = route.remote;
    ask_at_the_gate(route.remote, options, deadline);
    channel_ = grpc::CreateCustomChannel(target_of(route.remote, options.port), credentials_of(options.tls),
                                         channel_arguments(options));
    stub_ = wire::Store::NewStub(channel_);
    greet(options.tls.on());
  }

  ~GrpcStore() override {
    {
      std::lock_guard lock(staying_mutex_);
      leaving_ = true;
      if (staying_context_ != nullptr) staying_context_->TryCancel();
    }
    if (staying_.joinable()) staying_.join();
  }

  void set(const std::string& key, const std::string& value) override { put(key, value, false); }
  std::string claim(const std::string& key, const std::string& value) override { return put(key, value, true); }

  int64_t add(const std::string& key, int64_t amount) override {
    wire::AddRequest request;
    *request.mutable_caller() = caller_;
    request.set_key(key);
    request.set_amount(amount);
    request.set_number(random_number());
    wire::AddReply reply;
    check(made(call_timeout_, [&](auto* context) { return stub_->Add(context, request, &reply); }),
          "add to '" + key + "'", call_timeout_);
    return reply.sum();
  }

  std::string get(const std::string& key, milliseconds timeout) override {
    return std::move(*await({key}, timeout).mutable_values(0));
  }

  void wait(const std::vector<std::string>& keys, milliseconds timeout) override { await(keys, timeout); }

  std::vector<LifeSign> beat(const LifeSign& mine, milliseconds timeout) override {
    return ask(beat_of(mine), "hear that this rank lives", timeout);
  }

  void farewell(int rank, milliseconds timeout) override {
    wire::BeatRequest request = beat_of({.rank = rank});
    request.set_farewell(true);
    ask(request, "hear that this rank leaves", timeout);
  }

  HostNews beat_of_host(int host, milliseconds answer) override {
    wire::BeatRequest request;
    request.set_host(host);
    request.set_answer(answer.count());
    const wire::BeatReply reply = reply_to(request, "tell who is frozen", call_timeout_);
    return {signs_in(reply), milliseconds(reply.slowest_answer()), milliseconds(reply.longest_silence())};
  }

  void stay(int host) override {
    staying_ = std::thread([this, host] {
      while (stay_once(host)) pause();  // the link is out, or the server is gone
    });
  }

  std::vector<LifeSign> last_signs() override {
    wire::BeatRequest request;
    request.set_all(true);
    return ask(request, "tell what the ranks do", call_timeout_);
  }

 private:
  static constexpr milliseconds kBetweenTries{100}, kLongestQuestion{1'000};

  std::string put(const std::string& key, const std::string& value, bool unless_set) {
    wire::SetRequest request;
    *request.mutable_caller() = caller_;
    request.set_key(key);
    request.set_value(value);
    request.set_unless_set(unless_set);
    wire::SetReply reply;
    check(made(call_timeout_, [&](auto* context) { return stub_->Set(context, request, &reply); }), "set '" + key + "'",
          call_timeout_);
    return reply.value();
  }

  // Makes a call. One whose connection breaks is made again, until the server's host says that nobody is there, or
  // nothing has come from it for too long: since the last answer, and for as long as connections have been failing.
  template <class Rpc>
  Status made(milliseconds timeout, const Rpc& rpc) {
    const auto deadline = std::chrono::system_clock::now() + timeout;
    for (;; pause()) {
      grpc::ClientContext context;
      context.set_deadline(deadline);
      Status status = rpc(&context);
      if (status.error_code() == StatusCode::DEADLINE_EXCEEDED) return status;
      if (status.error_code() != StatusCode::UNAVAILABLE) {
        note_answer();
        return status;
      }
      if (is_refused(literal_, port_, kLongestQuestion))
        return {StatusCode::UNAVAILABLE, "nobody listens there any more"};
      if (const double silent = silent_for_too_long(); silent > 0)
        return {StatusCode::UNAVAILABLE, fmt::format("nothing came from it for {:.1f} s", silent)};
      if (std::chrono::system_clock::now() >= deadline) return status;
    }
  }

  // Between two tries. A call that fails at once gives a channel no time to connect: that goes on while somebody waits.
  void pause() const {
    std::this_thread::sleep_for(kBetweenTries);
    channel_->WaitForConnected(std::chrono::system_clock::now() + kLongestQuestion);
  }

  void note_answer() {
    std::lock_guard lock(silence_mutex_);
    heard_ = Clock::now();
    broken_.reset();
  }

  // The seconds; 0: not yet.
  double silent_for_too_long() {
    std::lock_guard lock(silence_mutex_);
    const Clock::time_point now = Clock::now();
    if (!broken_) broken_ = now;
    const bool is = now - *broken_ >= silence_ - 2 * pings_after(silence_) && now - heard_ >= silence_;
    return is ? std::chrono::duration<double>(now - heard_).count() : 0;
  }

  // Whether to call again: a call that is never answered, and breaks off with this process.
  bool stay_once(int host) {
    grpc::ClientContext context;
    {
      std::lock_guard lock(staying_mutex_);
      if (leaving_) return false;
      staying_context_ = &context;
    }
    wire::WaitRequest request;
    *request.mutable_caller() = caller_;
    request.add_keys("never");
    request.set_host(host);
    wire::WaitReply reply;
    stub_->Wait(&context, request, &reply);
    std::lock_guard lock(staying_mutex_);
    staying_context_ = nullptr;
    return !leaving_;
  }

  static uint64_t random_number() {
    uint64_t number = 0;
    if (::getrandom(&number, sizeof number, 0) != sizeof number) throw_error<CommError>("[store] no random numbers");
    return number;
  }

  // Says in words what gRPC would hide: it tries again whatever it is answered.
  void ask_at_the_gate(const std::string& literal, const StoreClientOptions& options, Clock::time_point deadline) {
    const Answer answer = knock(literal, options.port, kCallerAtGate, pass_of(options.token), deadline);
    if (answer.kind == Answer::Kind::refused)
      throw_error<CommError>(
          "[store] {} refuses this caller: the job's token is another one; is another job using this port?", where_);
    if (answer.kind == Answer::Kind::none)
      throw_error<CommError>(
          "[store] {} answers, but it is not a store of Bonfire's; another program has this port (torchrun's agent "
          "keeps MASTER_PORT for itself: BONFIRE_STORE_PORT names another)",
          where_);
    if ((answer.manner == kTlsManner) == options.tls.on()) return;
    throw_error<CommError>(
        "[store] {}; set BONFIRE_TLS_CERT, BONFIRE_TLS_KEY and BONFIRE_TLS_CA on all hosts of a job, or on none",
        options.tls.on() ? fmt::format("this process uses TLS, but the store at {} does not", where_)
                         : fmt::format("the store at {} uses TLS, but this process does not", where_));
  }

  // The first call. The gate may be crowded, and this host busy, when the channel comes to it; but what TLS refuses, it
  // will refuse again.
  void greet(bool tls) {
    constexpr milliseconds kPatience{30'000}, kPause{200};
    constexpr int kAttempts = 3;  // with TLS
    wire::WaitRequest request;
    *request.mutable_caller() = caller_;
    for (int attempt = 1;; ++attempt) {
      wire::WaitReply reply;
      grpc::ClientContext context;
      context.set_wait_for_ready(!tls);
      const Status status = stub_->Wait(limited(context, kPatience), request, &reply);
      if (!tls || status.error_code() != StatusCode::UNAVAILABLE) return check(status, "greet this caller", kPatience);
      if (attempt == kAttempts)
        throw_error<CommError>(
            "[store] no TLS with the store at {}: {}; are both certificates signed by an authority of the other's "
            "BONFIRE_TLS_CA, and is the store's one for this name?",
            where_, status.error_message());
      std::this_thread::sleep_for(kPause);
    }
  }

  static wire::BeatRequest beat_of(const LifeSign& mine) {
    wire::BeatRequest request;
    request.mutable_mine()->set_rank(mine.rank);
    request.mutable_mine()->set_name(mine.name);
    request.mutable_mine()->set_doing(mine.doing);
    if (mine.host >= 0) request.mutable_mine()->set_host(mine.host);
    return request;
  }

  std::vector<LifeSign> ask(const wire::BeatRequest& request, const std::string& action, milliseconds timeout) {
    return signs_in(reply_to(request, action, timeout));
  }

  wire::BeatReply reply_to(wire::BeatRequest request, const std::string& action, milliseconds timeout) {
    *request.mutable_caller() = caller_;
    wire::BeatReply reply;
    check(made(timeout, [&](auto* context) { return stub_->Beat(context, request, &reply); }), action, timeout);
    return reply;
  }

  static std::vector<LifeSign> signs_in(const wire::BeatReply& reply) {
    std::vector<LifeSign> signs;
    for (const wire::LifeSign& sign : reply.signs())
      signs.push_back({sign.rank(), sign.name(), sign.doing(), sign.has_host() ? sign.host() : -1});
    return signs;
  }

  // The server waits; when it is too late, a second call asks it what is missing.
  wire::WaitReply await(const std::vector<std::string>& keys, milliseconds timeout) {
    wire::WaitRequest request;
    *request.mutable_caller() = caller_;
    for (const std::string& key : keys) request.add_keys(key);
    wire::WaitReply reply;
    auto wait = [&](auto* context) { return stub_->Wait(context, request, &reply); };
    Status status = made(timeout, wait);
    if (status.error_code() != StatusCode::DEADLINE_EXCEEDED) {
      check(status, fmt::format("wait for {}", quoted(keys)), timeout);
      return reply;
    }
    request.set_at_once(true);
    reply.Clear();
    check(made(call_timeout_, wait), fmt::format("wait for {}", quoted(keys)), call_timeout_);
    if (reply.missing_size() > 0)
      throw_error<TimeoutError>("[store] nobody has set {} at {} within {} s",
                                quoted({reply.missing().begin(), reply.missing().end()}), where_, seconds(timeout));
    return reply;
  }

  static std::string quoted(const std::vector<std::string>& keys) {
    return fmt::format("'{}'", fmt::join(keys, "', '"));
  }

  static grpc::ClientContext* limited(grpc::ClientContext& context, milliseconds timeout) {
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    return &context;
  }

  void check(const Status& status, const std::string& action, milliseconds timeout) const {
    if (status.ok()) return;
    switch (status.error_code()) {
      case StatusCode::UNAUTHENTICATED:
        throw_error<CommError>("[store] {} refuses this caller: {}", where_, status.error_message());
      case StatusCode::FAILED_PRECONDITION:
      case StatusCode::INVALID_ARGUMENT:
        throw_error<CommError>("[store] {} cannot {}: {}", where_, action, status.error_message());
      case StatusCode::RESOURCE_EXHAUSTED:
        throw_error<CommError>("[store] {} cannot {}: a key and its value may have {} bytes", where_, action,
                               kLongestMessage);
      case StatusCode::DEADLINE_EXCEEDED:
        throw_error<TimeoutError>("[store] {} did not {} within {} s", where_, action, seconds(timeout));
      default:
        throw_error<CommError>("[store] the store at {} is gone, cannot {}: {}", where_, action,
                               status.error_message());
    }
  }

  std::string where_;  // host:port
  int port_;
  milliseconds call_timeout_, silence_;
  std::string literal_;  // that answered
  wire::Caller caller_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<wire::Store::Stub> stub_;

  std::mutex silence_mutex_;
  Clock::time_point heard_ = Clock::now();   // when the server last answered
  std::optional<Clock::time_point> broken_;  // since when connections have been failing

  std::mutex staying_mutex_;
  bool leaving_ = false;
  grpc::ClientContext* staying_context_ = nullptr;  // of the call under way
  std::thread staying_;                             // no std::jthread: see store_server.cpp
};

}  // namespace

std::shared_ptr<Store> connect_store(const StoreClientOptions& options) { return std::make_shared<GrpcStore>(options); }

}  // namespace bonfire::comm
