#pragma once
// A training run as its reporters hear of it.

#include <string>
#include <vector>

#include "bonfire/train/trainer.h"

namespace bonfire::train {

// What reporters were told, on whichever rank, and how it ended.
struct Course {
  RunBegins begin;
  std::vector<StepReport> steps;
  std::vector<EvaluationReport> evaluations;
  RunEnds end;
  std::vector<std::string> notes;
  std::vector<std::string> errors;  // [rank]; empty: none
  int told = 0;                     // runs that reporters heard of
};

// Writes it down, and asks for a stop after the step `stop_at`.
class Witness final : public Reporter {
 public:
  Witness(Course& course, int64_t stop_at) : course_(course), stop_at_(stop_at) {}
  void begin(const RunBegins& run) override {
    course_.begin = run;
    ++course_.told;
  }
  void step(const StepReport& report) override {
    course_.steps.push_back(report);
    if (report.step == stop_at_) Trainer::request_stop();
  }
  void evaluated(const EvaluationReport& report) override { course_.evaluations.push_back(report); }
  void note(const std::string& text) override { course_.notes.push_back(text); }
  void end(const RunEnds& run) override { course_.end = run; }

 private:
  Course& course_;
  int64_t stop_at_;
};

}  // namespace bonfire::train
