#pragma once
// HeartbeatMonitor: who of the ranks still gives signs of life. The server of the store keeps it (comm/store_server.h).
//
// A rank's heartbeat is a thread's (comm/heartbeat.h): it beats while the rank computes for an hour or waits for a
// peer, and stops with the process. So silence is a process that is frozen: stopped by a signal, held by a debugger or
// its container, on a host that swaps itself to death. Ranks that end say farewell, or are missed by other means first.
//
// Time in which the one who looks was frozen himself does not count against anybody; nor does time in which nothing
// came from a rank's whole host, whose launcher gives signs of life too: that is the link's silence, or the host's.

#include <chrono>
#include <map>
#include <optional>
#include <vector>

#include "bonfire/comm/store.h"

namespace bonfire::comm {

// Of a host's launcher.
struct HostSign {
  std::chrono::steady_clock::time_point heard;
  std::chrono::milliseconds answer{0};                              // how long it waits for one, of late
  int connections = 0;                                              // that stand
  std::optional<std::chrono::steady_clock::time_point> ended = {};  // when its last connection broke off (Store::stay)
};

class HeartbeatMonitor {
 public:
  using Clock = std::chrono::steady_clock;
  explicit HeartbeatMonitor(std::chrono::milliseconds silence)
      : silence_(silence) {}  // 0: nobody is ever taken for frozen

  void hear(const LifeSign& sign, Clock::time_point now);
  void hear_host(int host, Clock::time_point now, std::chrono::milliseconds answer);  // which took so long to answer
  void host_stays(int host, Clock::time_point now);
  void host_ended(int host, Clock::time_point now);  // one of its connections has
  void forget(int rank) { ranks_.erase(rank); }
  void clear() { ranks_.clear(); }

  // To be called every kLook: those who have frozen since the last look. They stay so, whatever they say later: their
  // peers have given them up.
  static constexpr std::chrono::milliseconds kLook{500};
  std::vector<LifeSign> look(Clock::time_point now);

  std::vector<LifeSign> frozen() const;
  std::vector<LifeSign> all() const;  // the last sign of each rank, in their order
  const std::map<int, HostSign>& hosts() const { return hosts_; }
  std::chrono::milliseconds slowest_answer() const;
  std::chrono::milliseconds longest_silence(Clock::time_point now) const;  // of any host's launcher

 private:
  struct Rank {
    LifeSign sign;
    Clock::time_point heard;
    bool frozen = false;
  };

  std::chrono::milliseconds silence_;
  Clock::time_point looked_{};
  std::map<int, Rank> ranks_;
  std::map<int, HostSign> hosts_;
};

}  // namespace bonfire::comm
