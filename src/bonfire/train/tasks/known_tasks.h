#pragma once
// The tasks that `bonfire train` knows: a file for each in train/tasks/, and a line in known_tasks.cpp. Which of them a
// model has stands where the model is registered (models/make.cpp).

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "bonfire/train/data/open_data.h"

namespace bonfire::train {

// What a model says of one input.
struct Answer {
  struct Guess {
    std::string label;
    double probability = 0, logit = 0;
    std::optional<int64_t> number = {};  // of a class
  };
  std::string of;  // "seven.png", "digits.idx[3]", a sentence
  std::vector<Guess> guesses = {};
  std::vector<double> box = {};  // left, top, right, bottom, as shares of the picture; empty: none
};

// The best weights of a run, put to use.
class Answerer {
 public:
  virtual ~Answerer() = default;
  virtual std::vector<Answer> answers(const std::string& input, size_t most) const = 0;  // the likeliest guesses first
};

struct KnownTask {
  const char* name;
  const char* reads;         // "images": what its data and its inputs are
  const char* input_name;    // of an answer: "image", "text"
  const char* predict_help;  // what `bonfire predict` wants
  OpenedData (*open)(const Config& config);
  std::unique_ptr<Answerer> (*answerer)(const std::filesystem::path& run, std::span<const std::string> overrides);
};

std::span<const KnownTask* const> known_tasks();
const KnownTask& known_task_of(const std::string& model);  // ConfigError for a model that there is not

// What weights of a program's own task say it is, in their file.
inline constexpr const char* kTaskOfProgram = "task_of_program";

// ConfigError where its weights are those of a program's own task, which only that program can put to use.
void require_known_task(const std::filesystem::path& run);

}  // namespace bonfire::train
