// Holds a store until it is killed; prints its port.

#include <unistd.h>

#include <cstdio>

#include "bonfire/comm/store_server.h"

int main() {
  auto server = bonfire::comm::serve_store({.token = "secret"});
  std::printf("%d\n", server->port());
  std::fflush(stdout);
  for (;;) ::pause();
}
