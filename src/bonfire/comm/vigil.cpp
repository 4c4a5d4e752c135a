#include "bonfire/comm/vigil.h"

namespace bonfire::comm {

namespace {

constexpr std::chrono::seconds kLateLook{2};  // whoever looks so late was held up himself

}  // namespace

void Vigil::hear(const LifeSign& sign, Clock::time_point now) {
  Rank& rank = ranks_[sign.rank];
  rank.sign = sign;
  rank.heard = now;
}

std::vector<LifeSign> Vigil::look(Clock::time_point now) {
  const Clock::duration gap = looked_ == Clock::time_point{} ? Clock::duration{} : now - looked_;
  looked_ = now;
  std::vector<LifeSign> news;
  for (auto& [number, rank] : ranks_) {
    if (gap > kLateLook) rank.heard += gap;
    if (silence_.count() == 0 || rank.frozen || now - rank.heard < silence_) continue;
    rank.frozen = true;
    news.push_back(rank.sign);
  }
  return news;
}

std::vector<LifeSign> Vigil::frozen() const {
  std::vector<LifeSign> list;
  for (const auto& [number, rank] : ranks_)
    if (rank.frozen) list.push_back(rank.sign);
  return list;
}

std::vector<LifeSign> Vigil::all() const {
  std::vector<LifeSign> list;
  for (const auto& [number, rank] : ranks_) list.push_back(rank.sign);
  return list;
}

}  // namespace bonfire::comm
