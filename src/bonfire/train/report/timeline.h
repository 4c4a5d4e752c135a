#pragma once
// Timeline: what happened when, on named tracks, as a page that chrome://tracing and ui.perfetto.dev open.
//
//   train::Timeline timeline;
//   { train::Span span(&timeline, "training loop", "next batch"); batch = loader.next(); }
//   timeline.write("trace.json");

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace bonfire::train {

class Timeline {
 public:
  using Details = std::map<std::string, std::string>;

  // These tracks are shown first, in this order; others below, as they come.
  explicit Timeline(std::initializer_list<const char*> first_tracks = {});

  // Times in seconds on the steady clock. Any thread may call it. Past a million spans nothing more is kept.
  void add(const std::string& track, std::string name, double begin, double seconds, Details details = {});

  std::string to_json() const;                          // the Trace Event Format
  void write(const std::filesystem::path& path) const;  // DataError when it cannot be written

 private:
  struct Event {
    int track;
    std::string name;
    double begin, seconds;
    Details details;
  };
  mutable std::mutex mutex_;
  std::map<std::string, int> tracks_;  // → number, in order of first use
  std::vector<Event> events_;
};

// From where it is made to end() or the end of its scope. Without a timeline it does nothing.
class Span {
 public:
  Span(Timeline* timeline, const char* track, std::string name);
  ~Span() { end(); }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;
  void end();

 private:
  Timeline* timeline_;
  const char* track_;
  std::string name_;
  double begin_;
};

double seconds_now();  // on the steady clock

}  // namespace bonfire::train
