#include "bonfire/train/report/timeline.h"

#include <nlohmann/json.hpp>

#include "bonfire/base/file.h"

namespace bonfire::train {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Timeline::Timeline(std::initializer_list<const char*> first_tracks) {
  for (const char* track : first_tracks) tracks_.emplace(track, static_cast<int>(tracks_.size()) + 1);
}

void Timeline::add(const std::string& track, std::string name, double begin, double seconds, Details details) {
  constexpr size_t kMost = 1'000'000;
  std::lock_guard lock(mutex_);
  if (events_.size() >= kMost) return;
  int number = tracks_.try_emplace(track, static_cast<int>(tracks_.size()) + 1).first->second;
  events_.push_back({number, std::move(name), begin, seconds, std::move(details)});
}

std::string Timeline::to_json() const {
  using nlohmann::json;
  std::lock_guard lock(mutex_);
  double first = events_.empty() ? 0 : events_[0].begin;
  for (const Event& event : events_) first = std::min(first, event.begin);
  json list = json::array();
  for (const auto& [track, number] : tracks_) {
    list.push_back({{"ph", "M"}, {"name", "thread_name"}, {"pid", 1}, {"tid", number}, {"args", {{"name", track}}}});
    list.push_back(
        {{"ph", "M"}, {"name", "thread_sort_index"}, {"pid", 1}, {"tid", number}, {"args", {{"sort_index", number}}}});
  }
  for (const Event& event : events_)
    list.push_back({{"ph", "X"},
                    {"name", event.name},
                    {"pid", 1},
                    {"tid", event.track},
                    {"ts", 1e6 * (event.begin - first)},  // microseconds
                    {"dur", 1e6 * event.seconds},
                    {"args", event.details}});
  return json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(list)}}.dump();
}

void Timeline::write(const std::filesystem::path& path) const {
  std::string text = to_json();
  const std::span<const std::byte> chunks[] = {std::as_bytes(std::span<const char>(text))};
  base::write_file_atomically(path, chunks);
}

Span::Span(Timeline* timeline, const char* track, std::string name)
    : timeline_(timeline), track_(track), name_(std::move(name)), begin_(timeline == nullptr ? 0 : seconds_now()) {}

void Span::end() {
  if (timeline_ != nullptr) timeline_->add(track_, std::move(name_), begin_, seconds_now() - begin_);
  timeline_ = nullptr;
}

}  // namespace bonfire::train
