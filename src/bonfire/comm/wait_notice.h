#pragma once
// Whoever waits for others at the start of a job says for whom: after 5 s, and then every 30 s.
//
//   WaitNotice notice("rank 1");
//   while (!there(notice.next()))                       // waits until then, at most
//     notice.look([&] { return "rank 0, which ..."; });  // asked only when it is time to speak

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "bonfire/comm/store.h"

namespace bonfire::comm {

class WaitNotice {
 public:
  using Clock = std::chrono::steady_clock;

  explicit WaitNotice(std::string who) : who_(std::move(who)) {}

  void begin(Clock::time_point now) {  // another wait
    begun_ = now;
    next_ = now + kFirst;
  }
  Clock::time_point next() const { return next_; }  // when there is something to say
  // Says on stderr, if it is time: "bonfire: rank 1 has waited 5 s for rank 0, which ...".
  void look(const std::function<std::string()>& whom, Clock::time_point now = Clock::now());

 private:
  static constexpr std::chrono::seconds kFirst{5}, kLater{30};

  std::string who_;
  Clock::time_point begun_ = Clock::now(), next_ = begun_ + kFirst;
};

// "rank 2", "ranks 2 and 3", "ranks 0, 2 and 3"
std::string list_of_ranks(const std::vector<int>& ranks);

// Waits until a key is there, and says for `whom` meanwhile; its value. TimeoutError, as Store::get's.
std::string get_with_notice(Store& store, const std::string& key, WaitNotice::Clock::time_point deadline,
                            WaitNotice& notice, const std::function<std::string()>& whom);

}  // namespace bonfire::comm
