#pragma once
// "Hosts" on one machine: network namespaces with addresses of their own and links between.

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "tests/launch/launched.h"

namespace bonfire::testing {

// Hosts are called a, b, ..., with the addresses 10.81.0.1, 10.81.0.2, ...
class Hosts {
 public:
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;
  bool ready() const { return ready_; }
  const std::string& names() const { return names_; }  // a letter each
  Words inside(const std::string& host) const { return {"ip", "netns", "exec", name_ + host}; }

  // Bytes that have left a host so far.
  int64_t bytes_sent(char host) const {
    Words words = inside({host});
    words.insert(words.end(), {"cat", "/sys/class/net/" + interface(host) + "/statistics/tx_bytes"});
    ChildProcess count(words);
    return std::stoll(count.read_line());
  }

  // No more than 1 Gbit/s leaves each host from now on.
  bool slow_down() const {
    bool slow = true;
    for (char host : names_)
      slow = slow && run(fmt::format("tc -n {{0}}{} qdisc add dev {} root tbf rate 1gbit burst 512kb latency 50ms",
                                     host, interface(host)));
    return slow;
  }

 protected:
  explicit Hosts(std::string names) : names_(std::move(names)) {}
  ~Hosts() = default;

  // {0} is what all names begin with.
  bool run(const std::string& commands) const {
    return std::system(fmt::format("({}) >/dev/null 2>&1", fmt::format(fmt::runtime(commands), name_)).c_str()) == 0;
  }
  // By which it reaches the others: x of host a, y of b, ...
  std::string interface(char host) const { return name_ + static_cast<char>('x' + host - 'a'); }

  const std::string& prefix() const { return name_; }  // {0}

  bool ready_ = false;

 private:
  static int next() {
    static int count = 0;
    return count++;
  }
  std::string names_;
  std::string name_ = fmt::format("bf{}{}", ::getpid(), std::string(1, static_cast<char>('a' + next() % 26)));
};

// Two hosts with a link between; the second has 10.83.0.2 too, which leads nowhere.
class TwoHosts : public Hosts {
 public:
  TwoHosts() : Hosts("ab") {
    ready_ = run("ip netns add {0}a && ip netns add {0}b && ip link add {0}x netns {0}a type veth peer name {0}y netns "
                 "{0}b") &&
             run("ip -n {0}a addr add 10.81.0.1/24 dev {0}x && ip -n {0}b addr add 10.81.0.2/24 dev {0}y") &&
             run("ip -n {0}b link add {0}z type veth peer name {0}w && ip -n {0}b addr add 10.83.0.2/24 dev {0}z && "
                 "ip -n {0}b link set {0}z up && ip -n {0}b link set {0}w up") &&
             run("ip -n {0}a link set {0}x up && ip -n {0}b link set {0}y up && ip -n {0}a link set lo up && "
                 "ip -n {0}b link set lo up");
  }
  ~TwoHosts() { run("ip netns del {0}a; ip netns del {0}b"); }

  std::string dead_end() const { return interface('c'); }
  // The link between the two.
  void cut() const { run("ip -n {0}b link set {0}y down"); }
  void mend() const { run("ip -n {0}b link set {0}y up"); }
};

// Three hosts on a switch.
class ThreeHosts : public Hosts {
 public:
  ThreeHosts() : Hosts("abc") {
    ready_ = run("ip netns add {0}s && ip -n {0}s link add name {0}s type bridge && ip -n {0}s link set {0}s up") &&
             run("i=0; for end in a:x b:y c:z; do ns={0}${{end%:*}} link={0}${{end#*:}} i=$((i + 1)); "
                 "ip netns add $ns && ip link add $link netns $ns type veth peer name $link netns {0}s && "
                 "ip -n {0}s link set $link master {0}s up && ip -n $ns addr add 10.81.0.$i/24 dev $link && "
                 "ip -n $ns link set $link up && ip -n $ns link set lo up || exit 1; done");
  }
  ~ThreeHosts() { run("for host in a b c s; do ip netns del {0}$host; done"); }
};

}  // namespace bonfire::testing
