#include "bonfire/comm/heartbeat_monitor.h"

#include <algorithm>

namespace bonfire::comm {

namespace {

constexpr std::chrono::seconds kLateLook{2};  // whoever looks, or speaks, so late was held up himself

}  // namespace

void HeartbeatMonitor::hear(const LifeSign& sign, Clock::time_point now) {
  Rank& rank = ranks_[sign.rank];
  rank.sign = sign;
  rank.heard = now;
}

void HeartbeatMonitor::hear_host(int number, Clock::time_point now, std::chrono::milliseconds answer) {
  HostSign& host = hosts_.try_emplace(number, HostSign{.heard = now}).first->second;
  const Clock::duration gap = now - host.heard;
  host.heard = now;
  host.answer = answer;
  if (gap < kLateLook) return;
  for (auto& [rank_number, rank] : ranks_)
    if (rank.sign.host == number) rank.heard = std::min(now, rank.heard + gap);
}

void HeartbeatMonitor::host_stays(int number, Clock::time_point now) {
  HostSign& host = hosts_.try_emplace(number, HostSign{.heard = now}).first->second;
  ++host.connections;
  host.ended.reset();
}

void HeartbeatMonitor::host_ended(int number, Clock::time_point now) {
  HostSign& host = hosts_.at(number);
  if (--host.connections == 0) host.ended = now;
}

std::chrono::milliseconds HeartbeatMonitor::slowest_answer() const {
  std::chrono::milliseconds slowest{0};
  for (const auto& [number, host] : hosts_) slowest = std::max(slowest, host.answer);
  return slowest;
}

std::chrono::milliseconds HeartbeatMonitor::longest_silence(Clock::time_point now) const {
  Clock::duration longest{0};
  for (const auto& [number, host] : hosts_) longest = std::max(longest, now - host.heard);
  return std::chrono::duration_cast<std::chrono::milliseconds>(longest);
}

std::vector<LifeSign> HeartbeatMonitor::look(Clock::time_point now) {
  const Clock::duration gap = looked_ == Clock::time_point{} ? Clock::duration{} : now - looked_;
  looked_ = now;
  std::vector<LifeSign> news;
  for (auto& [number, rank] : ranks_) {
    if (gap > kLateLook) rank.heard += gap;
    const auto host = hosts_.find(rank.sign.host);
    const Clock::time_point until = host == hosts_.end() ? now : host->second.heard;
    if (silence_.count() == 0 || rank.frozen || until - rank.heard < silence_) continue;
    rank.frozen = true;
    news.push_back(rank.sign);
  }
  return news;
}

std::vector<LifeSign> HeartbeatMonitor::frozen() const {
  std::vector<LifeSign> list;
  for (const auto& [number, rank] : ranks_)
    if (rank.frozen) list.push_back(rank.sign);
  return list;
}

std::vector<LifeSign> HeartbeatMonitor::all() const {
  std::vector<LifeSign> list;
  for (const auto& [number, rank] : ranks_) list.push_back(rank.sign);
  return list;
}

}  // namespace bonfire::comm
