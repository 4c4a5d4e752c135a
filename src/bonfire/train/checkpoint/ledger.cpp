#include "bonfire/train/checkpoint/ledger.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "bonfire/base/error.h"
#include "bonfire/data/loader.h"
#include "bonfire/train/report/number_text.h"

namespace bonfire::train {

namespace {

bool continues(const LedgerEntry& last, const LedgerStep& next, int64_t restart) {
  const LedgerStep& first = last.first;
  return next.step == last.end_step() && next.epoch == first.epoch && next.begin == last.end() &&
         next.samples == first.samples && next.of == first.of && next.seed == first.seed && next.world == first.world &&
         next.drop_last == first.drop_last && restart == last.restart;
}

// "7 (at 3, 4, 9 and 4 more)"
std::string listed(const std::vector<uint32_t>& numbers) {
  constexpr size_t kMost = 12;
  const size_t shown = std::min(kMost, numbers.size());
  std::string text =
      fmt::format("{}", fmt::join(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  return numbers.size() > shown
             ? fmt::format("{} and {} more", text, grouped(static_cast<int64_t>(numbers.size() - shown)))
             : text;
}

class Check {
 public:
  explicit Check(const Ledger& ledger) : ledger_(ledger) {
    for (const LedgerEntry& entry : ledger.entries()) by_epoch_[entry.first.epoch].push_back(&entry);
  }

  LedgerFindings run() {
    check_steps();
    for (auto at = by_epoch_.begin(); at != by_epoch_.end(); ++at) check_epoch(at);
    if (!by_epoch_.empty()) check_epochs();
    return {summary(), std::move(faults_)};
  }

 private:
  using Entries = std::vector<const LedgerEntry*>;
  using Epochs = std::map<int64_t, Entries>;

  void check_steps() {
    int64_t next = 1;
    for (const LedgerEntry& entry : ledger_.entries()) {
      if (entry.first.step > next)
        faults_.push_back(fmt::format("steps {} to {} are not recorded", next, entry.first.step - 1));
      if (entry.first.step < next)
        faults_.push_back(fmt::format("step {} is recorded after step {}", entry.first.step, next - 1));
      next = entry.end_step();
    }
    steps_ = next - 1;
  }

  void check_epochs() {
    int64_t next = 0;
    for (const auto& [epoch, entries] : by_epoch_) {
      if (epoch > next) faults_.push_back(fmt::format("epochs {} to {} are not recorded", next + 1, epoch));
      next = epoch + 1;
    }
  }

  void fault(const LedgerStep& step, int64_t begin, int64_t end, const char* what) {
    faults_.push_back(fmt::format("epoch {}: {} {}: {}", step.epoch + 1, plural(end - begin, "sample"), what,
                                  listed(sample_numbers(step, begin, end))));
  }

  // Places in the order mean the same throughout an epoch.
  void check_order(const LedgerStep& step, const LedgerStep& last) {
    if (step.of != last.of)
      faults_.push_back(fmt::format("epoch {}: it went over {} samples at step {} and over {} at its end",
                                    step.epoch + 1, step.of, step.step, last.of));
    if (step.seed != last.seed)
      faults_.push_back(fmt::format("epoch {}: it was in the order of seed {} at step {} and of seed {} at its end",
                                    step.epoch + 1, step.seed, step.step, last.seed));
  }

  void check_epoch(Epochs::iterator at) {
    Entries sorted = at->second;
    std::ranges::stable_sort(sorted, {}, [](const LedgerEntry* entry) { return entry->first.begin; });
    const LedgerStep& last = at->second.back()->first;  // in time
    int64_t covered = 0;
    for (const LedgerEntry* entry : sorted) {
      check_order(entry->first, last);
      if (entry->first.begin > covered) fault(last, covered, entry->first.begin, "not trained on");
      if (entry->first.begin < covered)
        fault(last, entry->first.begin, std::min(covered, entry->end()), "trained on more than once");
      covered = std::max(covered, entry->end());
    }
    const int64_t left = last.of - covered;
    if (left == 0) return;
    auto next = std::next(at);
    const bool dropped =
        (last.drop_last && left < last.samples) || (next != by_epoch_.end() && next->second.front()->first.drop_last &&
                                                    left < next->second.front()->first.samples);
    if (dropped)
      left_out_.insert(left);
    else if (next == by_epoch_.end())
      unfinished_ = fmt::format("; of epoch {} {} of {} so far", last.epoch + 1, grouped(covered), grouped(last.of));
    else
      fault(last, covered, last.of, "not trained on");
  }

  std::string summary() const {
    if (by_epoch_.empty()) return "no step is recorded";
    std::set<int64_t> worlds;
    for (const LedgerEntry& entry : ledger_.entries()) worlds.insert(entry.first.world);
    std::string text = faults_.empty() ? "every sample of every epoch was trained on exactly once"
                                       : "not every sample of every epoch was trained on exactly once";
    if (!left_out_.empty())
      text += fmt::format(", but for those that do not fill a batch (drop_last: {} of an epoch)",
                          fmt::join(left_out_, " or "));
    text += fmt::format(": {} in {}, on {} rank{}", plural(std::ssize(by_epoch_), "epoch"), plural(steps_, "step"),
                        fmt::join(worlds, " and "), worlds == std::set<int64_t>{1} ? "" : "s");
    if (ledger_.restarts() > 0) text += fmt::format(", resumed {}", plural(ledger_.restarts(), "time"));
    return text + unfinished_;
  }

  const Ledger& ledger_;
  Epochs by_epoch_;
  std::vector<std::string> faults_;
  std::set<int64_t> left_out_;  // numbers of samples
  std::string unfinished_;
  int64_t steps_ = 0;
};

}  // namespace

void Ledger::add(const LedgerStep& step) {
  if (!entries_.empty() && continues(entries_.back(), step, restarts_))
    ++entries_.back().steps;
  else
    entries_.push_back({step, 1, restarts_});
}

std::vector<uint32_t> sample_numbers(const LedgerStep& step, int64_t begin, int64_t end) {
  const std::vector<uint32_t> order =
      data::shuffled(static_cast<uint32_t>(step.of), step.seed, static_cast<uint64_t>(step.epoch));
  return {order.begin() + std::min(begin, step.of), order.begin() + std::min(end, step.of)};
}

std::string Ledger::json() const {
  nlohmann::json entries = nlohmann::json::array();
  for (const LedgerEntry& entry : entries_) {
    const LedgerStep& first = entry.first;
    entries.push_back({first.step, entry.steps, first.epoch, first.begin, first.samples, first.of, first.world,
                       first.drop_last ? 1 : 0, entry.restart, first.seed});
  }
  return nlohmann::json{{"fields", "step, steps, epoch, begin, samples, of, world, drop_last, restart, seed"},
                        {"restarts", restarts_},
                        {"steps", entries}}
      .dump();
}

Ledger Ledger::parse(const std::string& json) {
  try {
    nlohmann::json read = nlohmann::json::parse(json);
    Ledger ledger;
    ledger.restarts_ = read.at("restarts");
    for (const nlohmann::json& row : read.at("steps")) {
      auto field = [&row](size_t i) { return row.at(i).get<int64_t>(); };
      ledger.entries_.push_back({{.step = field(0),
                                  .epoch = field(2),
                                  .begin = field(3),
                                  .samples = field(4),
                                  .of = field(5),
                                  .seed = row.at(9).get<uint64_t>(),
                                  .world = field(6),
                                  .drop_last = field(7) != 0},
                                 field(1),
                                 field(8)});
    }
    return ledger;
  } catch (const nlohmann::json::exception& error) {
    throw_error<DataError>("[ledger] cannot be read: {}", error.what());
  }
}

LedgerFindings check_ledger(const Ledger& ledger) { return Check(ledger).run(); }

}  // namespace bonfire::train
