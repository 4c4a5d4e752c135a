#pragma once
// A link between two hosts that is a program: packets may take long, or get lost for a while.

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "tests/launch/hosts.h"

namespace bonfire::testing {

// Carries packets between two tunnel devices (TUN), each in a network namespace.
class Relay {
 public:
  // The devices are made in the namespaces, under one name.
  Relay(const std::string& first, const std::string& second, const std::string& device);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  bool ready() const { return ends_[0] >= 0 && ends_[1] >= 0; }
  void delay(std::chrono::milliseconds each_way) { delay_ = each_way.count(); }
  void cut() { cut_ = true; }  // what is sent is lost, and nobody is told
  void mend() { cut_ = false; }

 private:
  void carry();

  int ends_[2] = {-1, -1};
  std::atomic<int64_t> delay_{0};  // ms
  std::atomic<bool> cut_{false}, stop_{false};
  std::thread thread_;
};

// Two hosts, a and b, with a relay between them.
class RelayedHosts : public Hosts {
 public:
  RelayedHosts() : Hosts("ab") {
    if (!run("ip netns add {0}a && ip netns add {0}b")) return;
    relay_ = std::make_unique<Relay>(prefix() + "a", prefix() + "b", prefix() + "t");
    ready_ = relay_->ready() &&
             run("for end in a:1 b:2; do ns={0}${{end%:*}}; ip -n $ns addr add 10.81.0.${{end#*:}}/24 dev {0}t && "
                 "ip -n $ns link set {0}t mtu 16000 up && ip -n $ns link set lo up || exit 1; done");
  }
  ~RelayedHosts() {
    relay_.reset();
    run("ip netns del {0}a; ip netns del {0}b");
  }
  Relay& link() { return *relay_; }

 private:
  std::unique_ptr<Relay> relay_;
};

}  // namespace bonfire::testing
