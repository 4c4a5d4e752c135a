#pragma once
// Two network namespaces that stand for hosts a and b, for bench_comm. Needs root and `ip`.

#include <unistd.h>

#include <cstdlib>
#include <string>

namespace bench {

class TwoNamespaces {
 public:
  TwoNamespaces() { ready_ = run("ip netns add Na && ip netns add Nb"); }
  ~TwoNamespaces() { run("ip netns del Na; ip netns del Nb"); }
  TwoNamespaces(const TwoNamespaces&) = delete;
  TwoNamespaces& operator=(const TwoNamespaces&) = delete;

  bool ready() const { return ready_; }
  std::string name(int host) const { return prefix_ + "ab"[host]; }
  std::string inside(int host) const { return "ip netns exec " + name(host) + " "; }  // before a command

  // Each N in the commands is the beginning of this program's names.
  bool run(std::string commands) const {
    for (size_t at = 0; (at = commands.find('N', at)) != std::string::npos; at += prefix_.size())
      commands.replace(at, 1, prefix_);
    return std::system(("(" + commands + ") >/dev/null 2>&1").c_str()) == 0;
  }

 private:
  std::string prefix_ = "bb" + std::to_string(getpid());
  bool ready_ = false;
};

}  // namespace bench
