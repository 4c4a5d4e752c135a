#pragma once
// LinkMonitor: a connection between each two hosts of a job that tells when the link between them is cut.
//
// Nothing is sent over it. The kernels ask each other every second whether the other is there (TCP's keepalive), so
// hosts whose processes are frozen or busy still answer, and only a link or a host that is gone does not. One that
// answers again before Environment::node_timeout is over was never lost. The first rank of each host holds them. Two
// hosts that cannot make one (a firewall between them) are not watched.

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bonfire/comm/rendezvous.h"

namespace bonfire::comm {

class LinkMonitor {
 public:
  using Alarm = std::function<void(const std::string& why)>;

  // `alarm` is called by a thread, for each link that is cut: it names both hosts. On ranks that are not the first of
  // their host nothing happens.
  LinkMonitor(const Rendezvous& job, Alarm alarm);
  ~LinkMonitor();
  LinkMonitor(const LinkMonitor&) = delete;
  LinkMonitor& operator=(const LinkMonitor&) = delete;

 private:
  class Watch;

  std::unique_ptr<Watch> watch_;
  std::jthread thread_;
};

}  // namespace bonfire::comm
