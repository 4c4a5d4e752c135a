// The twin of store_server.cpp and store_client.cpp for builds without gRPC.

#include "bonfire/base/error.h"
#include "bonfire/comm/store_client.h"
#include "bonfire/comm/store_server.h"

namespace bonfire::comm {

namespace {

[[noreturn]] void say_what_is_missing() {
  throw_error<ConfigError>(
      "[store] this Bonfire was built without gRPC, so its ranks cannot find each other; install libgrpc++-dev, "
      "protobuf-compiler-grpc, libprotobuf-dev and protobuf-compiler, and build again");
}

}  // namespace

std::unique_ptr<StoreServer> serve_store(const StoreServerOptions&) { say_what_is_missing(); }
std::shared_ptr<Store> connect_store(const StoreClientOptions&) { say_what_is_missing(); }

}  // namespace bonfire::comm
