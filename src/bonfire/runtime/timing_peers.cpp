#include "bonfire/runtime/timing_peers.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bonfire/base/error.h"

namespace bonfire::runtime {

using namespace std::chrono_literals;

bool TimingPeers::take(const std::string& entry) { return store_->add(entry + "/taken", 1) == 1; }

void TimingPeers::set(const std::string& entry, const Times& times) {
  store_->set(entry, nlohmann::json(times).dump());
}

Times TimingPeers::wait(const std::string& entry) {
  constexpr std::chrono::milliseconds kBetweenLooks = 1s;
  using Clock = std::chrono::steady_clock;
  for (const auto end = Clock::now() + timeout_; Clock::now() < end;) {
    require_going_on();
    try {
      return nlohmann::json::parse(store_->get(entry, std::min(kBetweenLooks, timeout_))).get<Times>();
    } catch (const TimeoutError&) {  // looks whether it is worth waiting on
    }
  }
  throw_error<TimeoutError>("[tune] another rank has been timing the kernels of a node for more than {:g} s: {}",
                            std::chrono::duration<double>(timeout_).count(), entry);
}

void TimingPeers::end(const std::string& why) {
  std::lock_guard lock(mutex_);
  ended_ = why;
}

void TimingPeers::require_going_on() {
  std::lock_guard lock(mutex_);
  if (!ended_.empty()) throw_error<CommError>("[tune] no rank will time this node's kernels: {}", ended_);
}

}  // namespace bonfire::runtime
