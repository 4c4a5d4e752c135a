#include "bonfire/comm/store_server.h"

#include <fmt/format.h>
#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <atomic>
#include <charconv>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/base/interrupted.h"
#include "bonfire/comm/gate.h"
#include "bonfire/comm/heartbeat_monitor.h"
#include "bonfire/comm/network.h"
#include "bonfire/comm/secret.h"
#include "bonfire/comm/store.grpc.pb.h"

namespace bonfire::comm {

namespace {

using grpc::Status;
using grpc::StatusCode;

class Service final : public wire::Store::CallbackService {
 public:
  explicit Service(const StoreServerOptions& options)
      : token_(options.token), on_frozen_(options.on_frozen), monitor_(options.silence), ranks_(options.ranks) {}

  grpc::ServerUnaryReactor* Set(grpc::CallbackServerContext* context, const wire::SetRequest* request,
                                wire::SetReply* reply) override {
    Finished done;
    Status status = locked(request->caller(), [&](Values& values) {
      if (request->unless_set())
        reply->set_value(values.try_emplace(request->key(), request->value()).first->second);
      else
        values[request->key()] = request->value();
      done = take_satisfied();
      return Status::OK;
    });
    finish(done);
    return answer(context, status);
  }

  grpc::ServerUnaryReactor* Add(grpc::CallbackServerContext* context, const wire::AddRequest* request,
                                wire::AddReply* reply) override {
    Finished done;
    Status status = locked(request->caller(), [&](Values& values) {
      if (const auto before = sums_.find(request->number()); before != sums_.end()) {
        reply->set_sum(before->second);
        return Status::OK;
      }
      std::string& text = values.try_emplace(request->key(), "0").first->second;
      int64_t number = 0;
      auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
      if (error != std::errc() || end != text.data() + text.size())
        return Status(StatusCode::INVALID_ARGUMENT,
                      fmt::format("'{}' holds text, not a number that can be added to", request->key()));
      reply->set_sum(number + request->amount());
      text = std::to_string(reply->sum());
      remember(request->number(), reply->sum());
      done = take_satisfied();
      return Status::OK;
    });
    finish(done);
    return answer(context, status);
  }

  grpc::ServerUnaryReactor* Wait(grpc::CallbackServerContext* context, const wire::WaitRequest* request,
                                 wire::WaitReply* reply) override {
    Waiter* waiter = nullptr;
    Status status = locked(request->caller(), [&](Values& values) {
      if (!fill(*request, values, *reply) && !request->at_once()) {
        if (request->has_host()) monitor_.host_stays(request->host(), HeartbeatMonitor::Clock::now());
        waiter = new Waiter(*this, *request, *reply);  // deletes itself when gRPC is done with it
        waiting_.insert(waiter);
      }
      return Status::OK;
    });
    if (waiter != nullptr) return waiter;
    return answer(context, status);
  }

  grpc::ServerUnaryReactor* Beat(grpc::CallbackServerContext* context, const wire::BeatRequest* request,
                                 wire::BeatReply* reply) override {
    Status status = locked(request->caller(), [&](Values&) {
      const wire::LifeSign& mine = request->mine();
      if (request->farewell())
        monitor_.forget(mine.rank());
      else if (request->has_mine() && mine.rank() >= 0 && mine.rank() < ranks_)
        monitor_.hear({mine.rank(), mine.name(), mine.doing(), mine.has_host() ? mine.host() : -1},
                      HeartbeatMonitor::Clock::now());
      if (request->has_host())
        monitor_.hear_host(request->host(), HeartbeatMonitor::Clock::now(),
                           std::chrono::milliseconds(request->answer()));
      reply->set_slowest_answer(monitor_.slowest_answer().count());
      reply->set_longest_silence(monitor_.longest_silence(HeartbeatMonitor::Clock::now()).count());
      for (const LifeSign& sign : request->all() ? monitor_.all() : monitor_.frozen()) {
        wire::LifeSign& told = *reply->add_signs();
        told.set_rank(sign.rank);
        told.set_name(sign.name);
        told.set_doing(sign.doing);
        if (sign.host >= 0) told.set_host(sign.host);
      }
      return Status::OK;
    });
    return answer(context, status);
  }

  void look_for_frozen_ranks() {
    std::vector<LifeSign> news;
    int64_t generation = 0;
    {
      std::lock_guard lock(mutex_);
      news = monitor_.look(HeartbeatMonitor::Clock::now());
      generation = generation_;
    }
    if (on_frozen_)
      for (const LifeSign& rank : news) on_frozen_(rank, generation);
  }

  std::map<int, HostSign> hosts() const {
    std::lock_guard lock(mutex_);
    return monitor_.hosts();
  }

  void begin_generation(int64_t generation) {
    std::vector<Waiter*> late;
    {
      std::lock_guard lock(mutex_);
      generation_ = generation;
      monitor_.clear();
      of_ranks_.clear();
      for (auto one = waiting_.begin(); one != waiting_.end();) {
        bool of_a_rank = (*one)->request.caller().has_generation();
        if (of_a_rank) late.push_back(*one);
        one = of_a_rank ? waiting_.erase(one) : std::next(one);
      }
    }
    for (Waiter* waiter : late) waiter->Finish(too_old(waiter->request.caller(), generation));
  }

  void expect_ranks(int ranks) {
    std::lock_guard lock(mutex_);
    ranks_ = ranks;
  }

  void close() {
    std::set<Waiter*> left;
    {
      std::lock_guard lock(mutex_);
      left.swap(waiting_);
      closed_ = true;
    }
    for (Waiter* waiter : left) waiter->Finish(closing());
  }

 private:
  using Values = std::map<std::string, std::string>;

  // A call that is answered later. Whoever takes it out of waiting_, under the mutex, finishes it.
  struct Waiter final : grpc::ServerUnaryReactor {
    Waiter(Service& service, const wire::WaitRequest& request, wire::WaitReply& reply)
        : service(service), request(request), reply(reply) {}
    void OnDone() override { delete this; }
    void OnCancel() override {
      {
        std::lock_guard lock(service.mutex_);
        if (service.waiting_.erase(this) == 0) return;
        if (request.has_host()) service.monitor_.host_ended(request.host(), HeartbeatMonitor::Clock::now());
      }
      Finish(Status::CANCELLED);
    }

    Service& service;
    const wire::WaitRequest& request;
    wire::WaitReply& reply;
  };
  using Finished = std::vector<Waiter*>;

  static Status closing() { return {StatusCode::ABORTED, "the store is closing"}; }  // no need to try again

  static Status too_old(const wire::Caller& caller, int64_t generation) {
    return {StatusCode::FAILED_PRECONDITION,
            fmt::format("{} belongs to generation {} of this job, which is at {}: the job was restarted without it",
                        caller.name(), caller.generation(), generation)};
  }

  void remember(uint64_t call, int64_t sum) {
    constexpr size_t kCalls = 4096;  // whose answers may be under way
    sums_.emplace(call, sum);
    calls_.push_back(call);
    if (calls_.size() <= kCalls) return;
    sums_.erase(calls_.front());
    calls_.pop_front();
  }

  // Calls body(values of the caller's scope) under the mutex when the caller may.
  template <class Body>
  Status locked(const wire::Caller& caller, const Body& body) {
    if (!same_secret(caller.token(), token_))
      return {StatusCode::UNAUTHENTICATED, "the job's token is another one; is another job using this port?"};
    std::lock_guard lock(mutex_);
    if (closed_) return closing();
    if (caller.has_generation() && caller.generation() < generation_) return too_old(caller, generation_);
    if (caller.has_generation() && caller.generation() > generation_)
      return {StatusCode::FAILED_PRECONDITION, fmt::format("{} says generation {}, but this job is only at {}",
                                                           caller.name(), caller.generation(), generation_)};
    return body(values_for(caller));
  }

  Values& values_for(const wire::Caller& caller) { return caller.has_generation() ? of_ranks_ : of_launchers_; }

  // Whether all keys are there; the reply then has their values, else the names of the missing ones.
  static bool fill(const wire::WaitRequest& request, const Values& values, wire::WaitReply& reply) {
    for (const std::string& key : request.keys())
      if (!values.contains(key)) reply.add_missing(key);
    if (reply.missing_size() > 0) {
      if (!request.at_once()) reply.clear_missing();
      return false;
    }
    for (const std::string& key : request.keys()) reply.add_values(values.at(key));
    return true;
  }

  Finished take_satisfied() {
    Finished done;
    for (auto one = waiting_.begin(); one != waiting_.end();) {
      bool complete = fill((*one)->request, values_for((*one)->request.caller()), (*one)->reply);
      if (complete) done.push_back(*one);
      one = complete ? waiting_.erase(one) : std::next(one);
    }
    return done;
  }

  static void finish(const Finished& done) {
    for (Waiter* waiter : done) waiter->Finish(Status::OK);
  }

  static grpc::ServerUnaryReactor* answer(grpc::CallbackServerContext* context, const Status& status) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(status);
    return reactor;
  }

  const std::string token_;
  const std::function<void(const LifeSign&, int64_t)> on_frozen_;
  mutable std::mutex mutex_;  // for all below
  HeartbeatMonitor monitor_;
  int ranks_;
  int64_t generation_ = 0;
  Values of_ranks_, of_launchers_;  // of_ranks_: of this generation
  std::set<Waiter*> waiting_;
  std::map<uint64_t, int64_t> sums_;  // of add, by the number of the call
  std::deque<uint64_t> calls_;        // in their order
  bool closed_ = false;
};

std::shared_ptr<grpc::ServerCredentials> credentials_of(const Tls& tls) {
  if (!tls.on()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = tls.authorities;
  options.pem_key_cert_pairs.push_back({tls.key, tls.certificate});
  return grpc::SslServerCredentials(options);
}

// gRPC tells of a certificate that cannot be used when it listens, and only then: for a moment, where nobody calls.
void check_tls(const Tls& tls) {
  if (!tls.on()) return;
  wire::Store::CallbackService nothing;
  grpc::ServerBuilder builder;
  builder.RegisterService(&nothing);
  int bound = 0;
  builder.AddListeningPort("unix-abstract:bonfire-" + random_secret(), credentials_of(tls), &bound);
  if (std::unique_ptr<grpc::Server> server = builder.BuildAndStart(); server == nullptr || bound == 0)
    throw_error<ConfigError>(
        "[store] there is no TLS with what BONFIRE_TLS_CERT, BONFIRE_TLS_KEY and BONFIRE_TLS_CA name; are they a "
        "certificate, its own private key, and certificates of authorities, all in PEM?");
}

// gRPC serves those whom the gate lets in, and nobody else: it reads a message before it can be asked whose it is.
class GrpcStoreServer final : public StoreServer {
 public:
  explicit GrpcStoreServer(const StoreServerOptions& options)
      : service_(options),
        gate_({.address = resolve(options.address),
               .port = options.port,
               .pass = pass_of(options.token),
               .manner = options.tls.on() ? kTlsManner : kPlainManner}),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    gpr_set_log_function([](gpr_log_func_args*) {});  // what goes wrong is said in our own words
    check_tls(options.tls);
    grpc::ServerBuilder builder;
    door_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials_of(options.tls));
    // Clients ask often whether this process still lives.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
    builder.SetMaxReceiveMessageSize(kLongestMessage);
    builder.SetMaxSendMessageSize(-1);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr)
      throw_error<CommError>("[store] gRPC cannot serve on {}", host_and_port(options.address, options.port));
    watch_ = std::thread([this] { run(); });
  }
  ~GrpcStoreServer() override {
    stop_ = true;
    ::eventfd_write(wake_.get(), 1);
    watch_.join();
    service_.close();
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  }

  int port() const override { return gate_.port(); }
  void begin_generation(int64_t generation) override { service_.begin_generation(generation); }
  std::map<int, HostSign> hosts() const override { return service_.hosts(); }
  void expect_ranks(int ranks) override { service_.expect_ranks(ranks); }

 private:
  void run() {
    auto look = HeartbeatMonitor::Clock::now() + HeartbeatMonitor::kLook;
    while (!stop_) {
      pollfd sources[] = {{gate_.descriptor(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
      if (base::poll_until(sources, look) > 0)
        for (Gate::Caller& caller : gate_.take()) {
          grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
          connection.fd = caller.socket.release();
          door_->HandleNewConnection(&connection);
        }
      if (HeartbeatMonitor::Clock::now() < look) continue;
      service_.look_for_frozen_ranks();
      look = HeartbeatMonitor::Clock::now() + HeartbeatMonitor::kLook;
    }
  }

  Service service_;
  Gate gate_;
  FileDescriptor wake_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> door_;
  std::unique_ptr<grpc::Server> server_;
  // No std::jthread: what of it is inline would be compiled here without TSan, and taken for all (cmake/grpc.cmake).
  std::atomic<bool> stop_ = false;
  std::thread watch_;
};

}  // namespace

std::unique_ptr<StoreServer> serve_store(const StoreServerOptions& options) {
  return std::make_unique<GrpcStoreServer>(options);
}

}  // namespace bonfire::comm
