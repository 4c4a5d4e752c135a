#pragma once
// Metric: a number that says how good a model is, and how people read it.

#include <string>
#include <vector>

namespace bonfire::train {

struct Metric {
  enum class Unit : uint8_t { share, number };  // a share of 1 is shown in percent

  std::string name;           // in logs, JSON and TensorBoard: "top1"
  std::string title = {};     // in words: "top-1"; empty: the name
  std::string of = {};        // of what, where there is room to say it: "masked words"
  std::string brief = {};     // in the line that moves: "acc"; empty: the title
  std::string quantity = {};  // what its curve is of: "accuracy"; empty: the title
  Unit unit = Unit::share;
  bool higher_is_better = true;
  bool shown = true;  // false: in logs only

  const std::string& in_words() const { return title.empty() ? name : title; }
  std::string in_full() const { return of.empty() ? in_words() : in_words() + " of " + of; }
  const std::string& in_a_line() const { return brief.empty() ? in_words() : brief; }
  const std::string& on_a_chart() const { return quantity.empty() ? in_words() : quantity; }
  bool is_better(double one, double other) const { return higher_is_better ? one > other : one < other; }
};

struct Score {
  Metric metric;
  double value = 0;
};

// What "best" goes by where a task has no metric.
Metric loss_metric();

std::string value_in_words(const Metric& metric, double value);  // "97.22 %", "0.1234"

}  // namespace bonfire::train
