#include "bonfire/comm/wait_notice.h"

#include <algorithm>

#include "bonfire/base/error.h"
#include "bonfire/base/log.h"

namespace bonfire::comm {

void WaitNotice::look(const std::function<std::string()>& whom, Clock::time_point now) {
  if (now < next_) return;
  next_ = now + kLater;
  const auto waited = std::chrono::duration_cast<std::chrono::seconds>(now - begun_).count();
  base::log_warning("bonfire: {} has waited {} s for {}", who_, waited, whom());
}

std::string list_of_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i)
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  return text;
}

std::string get_with_notice(Store& store, const std::string& key, WaitNotice::Clock::time_point deadline,
                            WaitNotice& notice, const std::function<std::string()>& whom) {
  for (;;) {
    const auto end = std::min(deadline, notice.next());
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - WaitNotice::Clock::now());
    try {
      return store.get(key, std::max(left, std::chrono::milliseconds(0)));
    } catch (const TimeoutError&) {
      if (WaitNotice::Clock::now() >= deadline) throw;
    }
    notice.look(whom);
  }
}

}  // namespace bonfire::comm
