#include "bonfire/comm/axis_groups.h"

#include <utility>

#include "bonfire/base/error.h"

namespace bonfire::comm {

int64_t ValueNames::add(std::string name) {
  std::lock_guard lock(mutex_);
  names_.push_back(std::move(name));
  return static_cast<int64_t>(names_.size()) - 1;
}

std::string ValueNames::at(int64_t number) const {
  if (number < 0) return "a value";
  std::lock_guard lock(mutex_);
  return names_.at(static_cast<size_t>(number));
}

AxisGroups& AxisGroups::of(const Run& run) {
  if (run.groups == nullptr)
    throw_error<CommError>(
        "[comm] the job has been left, and its steps cannot run: join one before they are submitted");
  return static_cast<AxisGroups&>(*run.groups);  // there is no other kind
}

void AxisGroups::change(Axis axis, Along other, std::optional<Device> device) {
  auto made = std::make_shared<const Along>(std::move(other));
  std::lock_guard lock(mutex_);
  axes_[{axis, device}] = std::move(made);
  if (device) return;  // messages use the groups of the first
  std::erase_if(for_messages_, [&](const auto& entry) { return entry.first.axis == axis; });
}

std::shared_ptr<const AxisGroups::Along> AxisGroups::along(Axis axis, std::optional<Device> device) const {
  std::lock_guard lock(mutex_);
  auto found = axes_.find({axis, device});
  if (found == axes_.end()) found = axes_.find({axis, std::nullopt});
  if (found == axes_.end())
    throw_error<CommError>("[comm] this rank's job has no other ranks along the {} axis", name_of(axis));
  return found->second;
}

std::shared_ptr<Group> AxisGroups::for_messages(const Line& line) {
  const std::shared_ptr<const Along> axis = along(line.axis);
  std::lock_guard lock(mutex_);
  std::shared_ptr<Group>& own = for_messages_[line];
  if (own == nullptr) own = axis->group().for_messages();
  return own;
}

void AxisGroups::post(Outbox& outbox, const Line& line, std::function<void(Group&)> message) {
  {
    std::lock_guard lock(under_way_->mutex);
    ++under_way_->messages;
  }
  outbox.post(line, [message = std::move(message), group = for_messages(line), under_way = under_way_] {
    std::exception_ptr failure;
    try {
      message(*group);
    } catch (...) {
      failure = std::current_exception();
    }
    {
      std::lock_guard lock(under_way->mutex);
      --under_way->messages;
      if (failure && under_way->leaving) {
        ++under_way->lost;
        failure = nullptr;
      }
    }
    under_way->changed.notify_all();
    if (failure) std::rethrow_exception(failure);
  });
}

void AxisGroups::begin_leaving() {
  std::lock_guard lock(under_way_->mutex);
  under_way_->leaving = true;
}

int AxisGroups::give_up_messages(std::chrono::milliseconds patience) {
  begin_leaving();
  int left = 0, lost = 0;
  {
    std::unique_lock lock(under_way_->mutex);
    under_way_->changed.wait_for(lock, patience, [&] { return under_way_->messages == 0; });
    left = under_way_->messages;
    lost = under_way_->lost;
  }
  if (left > 0) abort("the job was left with messages that nobody had received");
  return left + lost;
}

void AxisGroups::abort(const std::string& reason) {
  decltype(axes_) axes;
  {
    std::lock_guard lock(mutex_);
    axes = axes_;
  }
  for (const auto& [axis, along] : axes)
    for (const auto& communicator : along->communicators) communicator->abort(reason);
}

}  // namespace bonfire::comm
