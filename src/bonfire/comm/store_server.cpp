#include "bonfire/comm/store_server.h"

#include <fmt/format.h>
#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>

#include <charconv>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/comm/network.h"
#include "bonfire/comm/store.grpc.pb.h"
#include "bonfire/comm/vigil.h"

namespace bonfire::comm {

namespace {

using grpc::Status;
using grpc::StatusCode;

// Takes as long for a wrong token as for the right one.
bool same_secret(const std::string& given, const std::string& expected) {
  unsigned difference = given.size() != expected.size();
  for (size_t i = 0; i < given.size(); ++i)
    difference |= static_cast<unsigned char>(given[i]) ^
                  static_cast<unsigned char>(expected.empty() ? 0 : expected[i % expected.size()]);
  return difference == 0;
}

class Service final : public wire::Store::CallbackService {
 public:
  explicit Service(const StoreServerOptions& options)
      : token_(options.token), on_frozen_(options.on_frozen), vigil_(options.silence) {}

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
        if (request->has_host()) vigil_.host_stays(request->host(), Vigil::Clock::now());
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
        vigil_.forget(mine.rank());
      else if (request->has_mine())
        vigil_.hear({mine.rank(), mine.name(), mine.doing(), mine.has_host() ? mine.host() : -1}, Vigil::Clock::now());
      if (request->has_host())
        vigil_.hear_host(request->host(), Vigil::Clock::now(), std::chrono::milliseconds(request->answer()));
      reply->set_slowest_answer(vigil_.slowest_answer().count());
      for (const LifeSign& sign : request->all() ? vigil_.all() : vigil_.frozen()) {
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
      news = vigil_.look(Vigil::Clock::now());
      generation = generation_;
    }
    if (on_frozen_)
      for (const LifeSign& rank : news) on_frozen_(rank, generation);
  }

  std::map<int, HostSign> hosts() const {
    std::lock_guard lock(mutex_);
    return vigil_.hosts();
  }

  void begin_generation(int64_t generation) {
    std::vector<Waiter*> late;
    {
      std::lock_guard lock(mutex_);
      generation_ = generation;
      vigil_.clear();
      of_ranks_.clear();
      for (auto one = waiting_.begin(); one != waiting_.end();) {
        bool of_a_rank = (*one)->request.caller().has_generation();
        if (of_a_rank) late.push_back(*one);
        one = of_a_rank ? waiting_.erase(one) : std::next(one);
      }
    }
    for (Waiter* waiter : late) waiter->Finish(too_old(waiter->request.caller(), generation));
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
        if (request.has_host()) service.vigil_.host_ended(request.host(), Vigil::Clock::now());
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
  Vigil vigil_;
  int64_t generation_ = 0;
  Values of_ranks_, of_launchers_;  // of_ranks_: of this generation
  std::set<Waiter*> waiting_;
  std::map<uint64_t, int64_t> sums_;  // of add, by the number of the call
  std::deque<uint64_t> calls_;        // in their order
  bool closed_ = false;
};

class GrpcStoreServer final : public StoreServer {
 public:
  explicit GrpcStoreServer(const StoreServerOptions& options) : service_(options) {
    gpr_set_log_function([](gpr_log_func_args*) {});  // what goes wrong is said in our own words
    std::string address = resolve(options.address);
    check_can_listen(address, options.port);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(host_and_port(address, options.port), grpc::InsecureServerCredentials(), &port_);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // two jobs must not share a port
    // Clients ask often whether this process still lives.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    // A message is read before its token is: strangers must not be able to fill the memory.
    builder.SetMaxReceiveMessageSize(kLongestMessage);
    builder.SetMaxSendMessageSize(-1);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0)
      throw_error<CommError>("[store] cannot listen on {}; choose another port", host_and_port(address, options.port));
    watch_ = std::thread([this] {
      std::unique_lock lock(mutex_);
      while (!stopped_.wait_for(lock, Vigil::kLook, [&] { return stop_; })) service_.look_for_frozen_ranks();
    });
  }
  ~GrpcStoreServer() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    stopped_.notify_all();
    watch_.join();
    service_.close();
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  }

  int port() const override { return port_; }
  void begin_generation(int64_t generation) override { service_.begin_generation(generation); }
  std::map<int, HostSign> hosts() const override { return service_.hosts(); }

 private:
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  // No std::jthread: what of it is inline would be compiled here without TSan, and taken for all (cmake/grpc.cmake).
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::thread watch_;
};

}  // namespace

std::unique_ptr<StoreServer> serve_store(const StoreServerOptions& options) {
  return std::make_unique<GrpcStoreServer>(options);
}

}  // namespace bonfire::comm
