#pragma once
// Two "hosts" on one machine.

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "tests/launch/launched.h"

namespace bonfire::testing {

// Two network namespaces with a link between, 10.81.0.1 and 10.81.0.2; the second has 10.83.0.2 too, which leads
// nowhere.
class TwoHosts {
 public:
  TwoHosts() {
    ready_ = run("ip netns add {0}a && ip netns add {0}b && ip link add {0}x netns {0}a type veth peer name {0}y netns "
                 "{0}b") &&
             run("ip -n {0}a addr add 10.81.0.1/24 dev {0}x && ip -n {0}b addr add 10.81.0.2/24 dev {0}y") &&
             run("ip -n {0}b link add {0}z type veth peer name {0}w && ip -n {0}b addr add 10.83.0.2/24 dev {0}z && "
                 "ip -n {0}b link set {0}z up && ip -n {0}b link set {0}w up") &&
             run("ip -n {0}a link set {0}x up && ip -n {0}b link set {0}y up && ip -n {0}a link set lo up && "
                 "ip -n {0}b link set lo up");
  }
  ~TwoHosts() { run("ip netns del {0}a; ip netns del {0}b"); }
  bool ready() const { return ready_; }
  std::string dead_end() const { return name_ + "z"; }  // the interface
  // The link between the two.
  void cut() const { run("ip -n {0}b link set {0}y down"); }
  void mend() const { run("ip -n {0}b link set {0}y up"); }
  Words inside(const char* host) const { return {"ip", "netns", "exec", name_ + host}; }

  // Bytes that have left the first host so far.
  int64_t bytes_sent() const {
    Words words = inside("a");
    words.insert(words.end(), {"cat", "/sys/class/net/" + name_ + "x/statistics/tx_bytes"});
    ChildProcess count(words);
    return std::stoll(count.read_line());
  }

 private:
  bool run(const std::string& commands) const {
    return std::system(fmt::format("({}) >/dev/null 2>&1", fmt::format(fmt::runtime(commands), name_)).c_str()) == 0;
  }
  static int next() {
    static int count = 0;
    return count++;
  }
  std::string name_ = fmt::format("bf{}{}", ::getpid(), std::string(1, static_cast<char>('a' + next() % 26)));
  bool ready_ = false;
};

}  // namespace bonfire::testing
