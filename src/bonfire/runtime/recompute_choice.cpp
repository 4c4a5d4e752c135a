#include "bonfire/runtime/recompute_choice.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace bonfire::runtime {

namespace {

constexpr int kNever = std::numeric_limits<int>::max();

// The step with some nodes run twice. Evaluated thousands of times: everything lies in arrays by number.
class Simulation {
 public:
  explicit Simulation(const StepModel& model)
      : model_(model), readers_(model.bytes.size()), writer_(model.bytes.size(), -1), next_before_(model.nodes.size()) {
    for (size_t n = 0; n < model.nodes.size(); ++n) {
      for (int value : model.nodes[n].reads) readers_[index(value)].push_back(static_cast<int>(n));
      for (int value : model.nodes[n].writes) writer_[index(value)] = static_cast<int>(n);
    }
    for (const auto& readers : readers_) first_late_reader_.push_back(first_late(readers));
  }

  // The bytes that each run needs, in the order of runs.
  const std::vector<size_t>& bytes_of_runs(const Repeated& repeated) {
    place_repeats(repeated);
    make_lifetimes(repeated);
    return profile_;
  }

  const std::vector<int>& runs() const { return runs_; }
  bool runs_again(size_t node) const { return before_[node] != kNever; }

  // Whether the node, if it is chosen, would run a second time: somebody reads it late.
  bool is_read_late(size_t node) const {
    return std::ranges::any_of(model_.nodes[node].writes, [&](int value) {
      return model_.bytes[index(value)] > 0 && first_late_reader_[index(value)] != kNever;
    });
  }

  // Chooses whoever writes what the node reads and nobody reads late, and so on for what these read.
  void add_writers_of_what_dies_before(size_t node, Repeated& repeated) const {
    for (int value : model_.nodes[node].reads) {
      const int writer = writer_[index(value)];
      if (writer < 0 || model_.bytes[index(value)] == 0) continue;
      const auto before = static_cast<size_t>(writer);
      if (repeated[before] || !model_.nodes[before].may_repeat || first_late_reader_[index(value)] != kNever) continue;
      repeated[before] = true;
      add_writers_of_what_dies_before(before, repeated);
    }
  }

 private:
  static size_t index(int value) { return static_cast<size_t>(value); }

  int first_late(const std::vector<int>& readers) const {
    for (int reader : readers)
      if (model_.nodes[index(reader)].is_late) return reader;
    return kNever;
  }

  // before_[n]: the late node before which the second run of n comes; kNever: it does not come at all.
  void place_repeats(const Repeated& repeated) {
    before_.assign(model_.nodes.size(), kNever);
    for (size_t n = model_.nodes.size(); n-- > 0;) {
      if (!repeated[n]) continue;
      int& first = before_[n];
      for (int value : model_.nodes[n].writes) {
        if (model_.bytes[index(value)] == 0) continue;
        first = std::min(first, first_late_reader_[index(value)]);
        for (int reader : readers_[index(value)]) first = std::min(first, before_[index(reader)]);
      }
    }
    first_before_.assign(model_.nodes.size(), -1);  // lists of second runs, in the order of their nodes
    for (size_t n = before_.size(); n-- > 0;)
      if (before_[n] != kNever) next_before_[n] = std::exchange(first_before_[index(before_[n])], static_cast<int>(n));
    runs_.clear();
    for (size_t n = 0; n < model_.nodes.size(); ++n) {
      for (int again = first_before_[n]; again >= 0; again = next_before_[index(again)]) runs_.push_back(-1 - again);
      runs_.push_back(static_cast<int>(n));
    }
  }

  struct Life {
    int first = kNever, last = -1;  // runs
  };

  // Values as they are first computed, then as they are computed again.
  void make_lifetimes(const Repeated& repeated) {
    const size_t values = model_.bytes.size();
    lives_.assign(2 * values, {});
    const auto is_second = [&](int value, bool late) {
      const int writer = writer_[index(value)];
      return late && writer >= 0 && repeated[index(writer)] && before_[index(writer)] != kNever;
    };
    for (size_t r = 0; r < runs_.size(); ++r) {
      const bool again = runs_[r] < 0;
      const ModelNode& node = model_.nodes[index(again ? -1 - runs_[r] : runs_[r])];
      const int now = static_cast<int>(r);
      for (int value : node.reads)
        lives_[index(value) + (is_second(value, again || node.is_late) ? values : 0)].last = now;
      for (int value : node.writes) {
        Life& life = lives_[index(value) + (again ? values : 0)];
        life.first = std::min(life.first, now);
        life.last = std::max(life.last, now);
      }
    }
    changes_.assign(runs_.size() + 1, 0);
    for (size_t i = 0; i < lives_.size(); ++i) {
      if (lives_[i].first == kNever) continue;
      const auto bytes = static_cast<int64_t>(model_.bytes[i % values]);
      changes_[index(lives_[i].first)] += bytes;
      const size_t end = std::min(index(lives_[i].last + model_.in_flight), runs_.size());
      changes_[end] -= bytes;
    }
    profile_.resize(runs_.size());
    int64_t living = 0;
    for (size_t r = 0; r < runs_.size(); ++r) {
      living += changes_[r];
      const bool again = runs_[r] < 0;
      const ModelNode& node = model_.nodes[index(again ? -1 - runs_[r] : runs_[r])];
      size_t shared = 0;
      for (const auto& [written, read] : node.in_place) {
        const Life& dying = lives_[index(read) + (is_second(read, again || node.is_late) ? values : 0)];
        if (dying.last == static_cast<int>(r) && model_.bytes[index(written)] == model_.bytes[index(read)])
          shared += model_.bytes[index(read)];
      }
      profile_[r] = static_cast<size_t>(living) + node.workspace - shared;
    }
  }

  const StepModel& model_;
  std::vector<std::vector<int>> readers_;  // [values], in order
  std::vector<int> writer_;                // [values]
  std::vector<int> first_late_reader_;     // [values]
  std::vector<int> before_, runs_, first_before_, next_before_;
  std::vector<Life> lives_;
  std::vector<int64_t> changes_;
  std::vector<size_t> profile_;
};

class Search {
 public:
  Search(const StepModel& model, size_t most)
      : model_(model), most_(most), simulation_(model), repeated_(model.nodes.size()) {}

  std::optional<Repeated> run() {
    start_from(repeated_);
    while (excess_ > 0 && take_some()) {
    }
    if (excess_ > 0) keep_what_helps();
    if (excess_ > 0) return {};
    take_back();
    return repeated_;
  }

 private:
  void start_from(Repeated repeated) {
    repeated_ = std::move(repeated);
    excess_ = excess_of(repeated_);
    seconds_ = seconds_of_repeats(model_, repeated_);
  }

  // From the other end, for tight budgets: all that may run again does, but for what is best kept.
  void keep_what_helps() {
    Repeated all(model_.nodes.size());
    for (size_t n = 0; n < all.size(); ++n) all[n] = model_.nodes[n].may_repeat;
    start_from(std::move(all));
    while (excess_ > 0) {
      std::vector<std::pair<double, size_t>> gains;
      for (size_t n = 0; n < repeated_.size(); ++n)
        if (const double gain = gain_of_keeping(n); gain > 0) gains.emplace_back(-gain, n);
      std::ranges::sort(gains);
      constexpr size_t kShare = 16;
      constexpr double kNearly = 0.7;
      size_t kept = 0;
      for (const auto& [negative, node] : gains) {
        if (excess_ == 0 || kept > gains.size() / kShare) break;
        const double now = kept == 0 ? -negative : gain_of_keeping(node);
        if (now < kNearly * -negative) continue;
        repeated_[node] = false;
        excess_ -= now;
        ++kept;
      }
      if (kept == 0) return;
      start_from(repeated_);
    }
  }

  double gain_of_keeping(size_t node) {
    if (!repeated_[node]) return 0;
    repeated_[node] = false;
    const double gain = excess_ - excess_of(repeated_);
    repeated_[node] = true;
    return gain;
  }

  // One more node: alone, or with those before it whose results would else be kept for it alone.
  struct Move {
    double score = 0;
    size_t node = 0;
    bool with_writers = false;
  };

  // Bytes above the budget, added up over the runs; 0 where it is held.
  double excess_of(const Repeated& repeated) {
    double excess = 0;
    for (size_t bytes : simulation_.bytes_of_runs(repeated))
      if (bytes > most_) excess += static_cast<double>(bytes - most_);
    return excess;
  }

  Repeated after(const Move& move) const {
    Repeated repeated = repeated_;
    repeated[move.node] = true;
    if (move.with_writers) simulation_.add_writers_of_what_dies_before(move.node, repeated);
    return repeated;
  }

  void rate(Move& move) {
    constexpr double kLeast = 1e-7;  // seconds: a kernel is never free
    const Repeated repeated = after(move);
    const double seconds = seconds_of_repeats(model_, repeated) - seconds_;
    move.score = (excess_ - excess_of(repeated)) / std::max(seconds, kLeast);
  }

  std::vector<Move> rated_moves() {
    std::vector<Move> moves;
    for (size_t n = 0; n < model_.nodes.size(); ++n) {
      if (repeated_[n] || !model_.nodes[n].may_repeat || !simulation_.is_read_late(n)) continue;
      Move alone{.node = n}, with_writers{.node = n, .with_writers = true};
      rate(alone);
      if (alone.score > 0) moves.push_back(alone);
      if (after(with_writers) == after(alone)) continue;
      rate(with_writers);
      if (with_writers.score > 0) moves.push_back(with_writers);
    }
    std::ranges::stable_sort(moves, [](const Move& a, const Move& b) { return a.score > b.score; });
    return moves;
  }

  // The best few, each as long as it brings about what it seemed to bring before the others were taken.
  bool take_some() {
    constexpr size_t kShare = 8;
    constexpr double kNearly = 0.7;
    const std::vector<Move> moves = rated_moves();
    size_t taken = 0;
    for (const Move& move : moves) {
      if (excess_ == 0 || taken > moves.size() / kShare) break;
      if (repeated_[move.node]) continue;
      Move now = move;
      if (taken > 0) rate(now);
      if (now.score < kNearly * move.score) continue;
      repeated_ = after(now);
      excess_ = excess_of(repeated_);
      seconds_ = seconds_of_repeats(model_, repeated_);
      ++taken;
    }
    return taken > 0;
  }

  void take_back() {
    std::vector<size_t> taken;
    for (size_t n = 0; n < repeated_.size(); ++n)
      if (repeated_[n]) taken.push_back(n);
    std::ranges::stable_sort(taken,
                             [&](size_t a, size_t b) { return model_.nodes[a].seconds > model_.nodes[b].seconds; });
    for (size_t node : taken) {
      repeated_[node] = false;
      if (excess_of(repeated_) > 0) repeated_[node] = true;
    }
    simulation_.bytes_of_runs(repeated_);
    for (size_t node : taken) repeated_[node] = repeated_[node] && simulation_.runs_again(node);
  }

  const StepModel& model_;
  const size_t most_;
  Simulation simulation_;
  Repeated repeated_;
  double excess_ = 0, seconds_ = 0;
};

}  // namespace

std::vector<int> order_of_runs(const StepModel& model, const Repeated& repeated) {
  Simulation simulation(model);
  simulation.bytes_of_runs(repeated);
  return simulation.runs();
}

size_t peak_of(const StepModel& model, const Repeated& repeated) {
  Simulation simulation(model);
  const std::vector<size_t>& profile = simulation.bytes_of_runs(repeated);
  return profile.empty() ? 0 : *std::ranges::max_element(profile);
}

double seconds_of_repeats(const StepModel& model, const Repeated& repeated) {
  double seconds = 0;
  for (size_t n = 0; n < repeated.size(); ++n)
    if (repeated[n]) seconds += model.nodes[n].seconds;
  return seconds;
}

std::optional<Repeated> choose_repeated(const StepModel& model, size_t most) { return Search(model, most).run(); }

size_t fewest_bytes(const StepModel& model) {
  size_t possible = peak_of(model, Repeated(model.nodes.size())), impossible = 0;
  while (possible - impossible > possible / 20 + 1) {
    const size_t tried = impossible + (possible - impossible) / 2;
    if (const std::optional<Repeated> choice = choose_repeated(model, tried)) {
      possible = std::min(tried, peak_of(model, *choice));
    } else {
      impossible = tried;
    }
  }
  return possible;
}

}  // namespace bonfire::runtime
