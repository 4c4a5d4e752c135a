#include "bonfire/parallel/strategies/local_sgd.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/parallel/job.h"

namespace bonfire {

LocalSgd::LocalSgd(const DistributedStrategy& strategy)
    : every_(strategy.local_sgd_steps), warm_epochs_(strategy.local_sgd_is_warm_steps) {
  if (every_ < 1) throw_error<ConfigError>("[fleet] local_sgd_steps is {}, expected at least 1", every_);
  if (warm_epochs_ && *warm_epochs_ < 0)
    throw_error<ConfigError>("[fleet] local_sgd_is_warm_steps is {}, expected epochs, at least 0, or auto",
                             *warm_epochs_);
  local_ = warm_epochs_ == 0;
}

void LocalSgd::begin_epoch(int64_t epoch) {
  if (warm_epochs_) local_ = epoch >= *warm_epochs_;
}

void LocalSgd::change_rate(double before, double now) {
  if (has_stepped_) highest_rate_ = std::max(highest_rate_, before);  // a schedule may warm up first
  if (!warm_epochs_ && now < highest_rate_) local_ = true;
  has_stepped_ = false;
}

bool LocalSgd::ends_with_average() {
  has_stepped_ = true;
  const bool average = averages_next();
  if (local_) own_steps_ = average ? 0 : own_steps_ + 1;
  return average;
}

namespace fleet {

namespace {

class LocalSgdPart final : public StrategyPart {
 public:
  explicit LocalSgdPart(const Applied& to)
      : counting(to.strategy), parameters_(to.optimizer.parameters()), rate_(to.optimizer.lr()) {
    hooks_.push_back(to.context.reduces_gradients.add([this] { return !counting.local(); }));
    hooks_.push_back(to.context.after_update.add([this, &job = to.job](const optim::Optimizer& optimizer) {
      if (!(optimizer.parameters() == parameters_)) return;
      note_rate(optimizer.lr());  // another thread may have set it
      if (counting.ends_with_average()) average_parameters(job);
    }));
    hooks_.push_back(to.context.after_rate.add([this](const optim::Optimizer& optimizer) {
      if (optimizer.parameters() == parameters_) note_rate(optimizer.lr());
    }));
  }

  std::string state() const override {
    return nlohmann::json{{"local", counting.local()}, {"highest_rate", counting.highest_rate()}}.dump();
  }
  void resume(const std::string& state) override {
    const nlohmann::json saved = nlohmann::json::parse(state);
    counting.resume(saved.at("local"), saved.at("highest_rate"));
  }

  LocalSgd counting;

 private:
  void note_rate(double rate) {
    if (rate != rate_) counting.change_rate(std::exchange(rate_, rate), rate);
  }

  std::vector<Variable> parameters_;
  double rate_;
  std::vector<Hook> hooks_;
};

void check_local_sgd(const DistributedStrategy& s) {
  const DistributedStrategy usual;
  require_effect("local_sgd_steps", s.local_sgd_steps != usual.local_sgd_steps, s.use_local_sgd, "use_local_sgd");
  require_effect("local_sgd_is_warm_steps", s.local_sgd_is_warm_steps != usual.local_sgd_is_warm_steps, s.use_local_sgd,
                 "use_local_sgd");
  require_at_least_one("local_sgd_steps", s.local_sgd_steps);
  if (s.use_local_sgd) LocalSgd{s};
}

void apply_local_sgd(const Applied& to, std::unique_ptr<StrategyPart>& kept) {
  if (to.strategy.use_local_sgd && to.job.along(Axis::tensor))
    throw_error<ConfigError>(
        "[strategy] use_local_sgd does not go with a tensor axis ({}): ranks that share layers meet at every step "
        "anyway; leave one of them out",
        to_string(mesh()));
  if (!to.strategy.use_local_sgd.chosen || !to.job.has_replicas()) return;
  kept.reset();
  if (to.strategy.use_local_sgd) kept = std::make_unique<LocalSgdPart>(to);
}

void compare_local_sgd(const Applied& to, comm::Settings& settings) {
  const DistributedStrategy& s = to.strategy;
  settings.emplace_back("use_local_sgd", print(bool{s.use_local_sgd}));
  settings.emplace_back("local_sgd_steps", print(s.local_sgd_steps));
  settings.emplace_back("local_sgd_is_warm_steps",
                        s.local_sgd_is_warm_steps ? print(*s.local_sgd_is_warm_steps) : "auto");
}

}  // namespace

extern const StrategyKind local_sgd;
const StrategyKind local_sgd{
    .name = "local_sgd", .check = check_local_sgd, .apply = apply_local_sgd, .compare = compare_local_sgd};

LocalSgd* local_sgd_of_job() {
  auto* part = job() ? job()->part<LocalSgdPart>(local_sgd) : nullptr;
  return part == nullptr ? nullptr : &part->counting;
}

void set_epoch(int64_t epoch) {
  if (LocalSgd* local = local_sgd_of_job()) local->begin_epoch(epoch);
}

bool averaged() {
  const LocalSgd* local = local_sgd_of_job();
  return local == nullptr || local->averaged();
}

void average(std::span<const Variable> more) {
  if (!job() || !job()->has_replicas()) return;
  average_parameters(*job());
  average_over_ranks(more);
  commit();
  if (LocalSgd* local = local_sgd_of_job()) local->note_average();
}

}  // namespace fleet
}  // namespace bonfire
