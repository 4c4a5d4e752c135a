#pragma once
// Heartbeat: a rank's signs of life, and news of peers that give none.
//
//   comm::Heartbeat heartbeat(comm::meet(comm::read_environment()));
//   heartbeat.on_loss([group](const std::string& why) { group->abort(why); });
//
// A thread tells the store every second that this process lives. The store's server tells everyone in its answers who
// has been silent for too long (comm/heartbeat_monitor.h). So each rank costs one small message a second, whatever the
// backend is and however many hosts there are; and a rank that computes for long, or waits, is not taken for a frozen
// one. Links between hosts that are cut are noticed too (comm/link_monitor.h).

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "bonfire/comm/link_monitor.h"
#include "bonfire/comm/progress.h"
#include "bonfire/comm/rendezvous.h"

namespace bonfire::comm {

class Heartbeat {
 public:
  using Alarm = std::function<void(const std::string& why)>;

  explicit Heartbeat(const Rendezvous& job);
  ~Heartbeat();  // says farewell
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // What this rank does, for messages about it.
  void show(std::shared_ptr<const Progress> progress);
  // Called once, by the thread, or here when it is known already: a peer is frozen, a link is cut, or the store is out
  // of reach.
  void on_loss(const Alarm& alarm);

 private:
  void run(const std::stop_token& stop);
  std::string beat();  // what was lost; "": nothing
  void raise(const std::string& why);

  std::shared_ptr<Store> store_;
  std::string holder_;  // of the store
  std::chrono::milliseconds node_timeout_;
  std::mutex mutex_;
  std::condition_variable_any stopped_;
  LifeSign self_;
  std::shared_ptr<const Progress> progress_;
  Alarm alarm_;
  std::string loss_;
  std::chrono::steady_clock::time_point heard_;  // when the store last answered
  std::jthread thread_;
  LinkMonitor links_;
};

}  // namespace bonfire::comm
