#include "bonfire/comm/heartbeat.h"

#include <fmt/format.h>

#include <vector>

#include "bonfire/base/error.h"

namespace bonfire::comm {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kBetweenBeats = 1s;
constexpr auto kAnswer = 3s;  // a store that has not answered by then is asked again
constexpr auto kSlack = 1s;   // a host that is lost is noticed by its link's monitor first, which knows more
constexpr auto kHeldUp = 2s;  // a beat that comes so late: this process was frozen itself
constexpr auto kFarewell = 1s;

std::string holder_of(const Rendezvous& job) {
  if (job.environment.starter == Starter::bonfire)
    return fmt::format("node 0's launcher ({}), which holds the store,", job.environment.master_address);
  const Peer& first = job.peers.at(0);
  return fmt::format("rank 0 ({}, process {}), which holds the store,", first.host, first.process);
}

std::string frozen_text(const std::vector<LifeSign>& ranks) {
  std::vector<std::string> texts;
  for (const LifeSign& rank : ranks)
    texts.push_back(
        fmt::format("{} is frozen: it gives no sign of life, and was last seen in {}", rank.name, rank.doing));
  return fmt::format("{}", fmt::join(texts, "; "));
}

}  // namespace

Heartbeat::Heartbeat(const Rendezvous& job)
    : store_(job.store),
      holder_(holder_of(job)),
      node_timeout_(job.environment.node_timeout),
      self_{.rank = job.environment.rank, .name = process_name(job.environment.rank), .host = job.environment.host},
      heard_(Clock::now()),
      thread_([this](const std::stop_token& stop) { run(stop); }),
      links_(job, [this](const std::string& why) { raise(why); }) {}

Heartbeat::~Heartbeat() {
  thread_ = {};
  try {
    store_->farewell(self_.rank, kFarewell);
  } catch (const Error&) {  // it has gone before
  }
}

void Heartbeat::show(std::shared_ptr<const Progress> progress) {
  std::lock_guard lock(mutex_);
  progress_ = std::move(progress);
}

void Heartbeat::on_loss(const Alarm& alarm) {
  std::string loss;
  {
    std::lock_guard lock(mutex_);
    alarm_ = alarm;
    loss = loss_;
  }
  if (!loss.empty()) alarm(loss);
}

void Heartbeat::run(const std::stop_token& stop) {
  for (auto next = Clock::now(); !stop.stop_requested(); next = Clock::now() + kBetweenBeats) {
    std::unique_lock lock(mutex_);
    stopped_.wait_until(lock, stop, next, [] { return false; });
    if (stop.stop_requested()) return;
    const auto late = Clock::now() - next;
    lock.unlock();
    if (late > kHeldUp) heard_ += late;  // the silence was on this side
    if (std::string loss = beat(); !loss.empty()) raise(loss);
  }
}

std::string Heartbeat::beat() {
  LifeSign sign;
  {
    std::lock_guard lock(mutex_);
    sign = self_;
    sign.doing = progress_ == nullptr ? "joining" : progress_->text();
  }
  try {
    std::vector<LifeSign> frozen = store_->beat(sign, kAnswer);
    heard_ = Clock::now();
    std::erase_if(frozen, [&](const LifeSign& rank) { return rank.rank == sign.rank; });  // no longer, it seems
    return frozen.empty() ? "" : frozen_text(frozen);
  } catch (const Error& error) {
    const auto silent = Clock::now() - heard_;
    if (silent < node_timeout_ + kSlack) return "";
    return fmt::format("{} has given no sign of life for {:.1f} s: {}", holder_,
                       std::chrono::duration<double>(silent).count(), error.what());
  }
}

void Heartbeat::raise(const std::string& why) {
  Alarm alarm;
  {
    std::lock_guard lock(mutex_);
    if (!loss_.empty()) return;
    loss_ = why;
    alarm = alarm_;
  }
  if (alarm) alarm(why);
}

}  // namespace bonfire::comm
