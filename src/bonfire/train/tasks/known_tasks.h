#pragma once
// The tasks that `bonfire train` knows: a file for each in train/tasks/, and a line in known_tasks.cpp. Which of them a
// model has stands where the model is registered (models/make.cpp).

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

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

struct WritingOptions {
  int64_t tokens = 64;     // to write; fewer where the text ends before
  double temperature = 0;  // 0: always the likeliest token; else logits are divided by it and tokens are drawn
  int64_t top_k = 0;       // of the so many likeliest; 0: of all
  uint64_t seed = 1;
};

// The best weights of a run, put to use to go on with a text.
class Writer {
 public:
  virtual ~Writer() = default;
  // Gives the sink the bytes of each token as soon as it is there: a character may come in pieces. Returns how many
  // tokens were written.
  virtual int64_t write(const std::string& prompt, const WritingOptions& options,
                        const std::function<void(std::string_view)>& sink) const = 0;
};

struct KnownTask {
  const char* name;
  const char* reads;         // "images": what its data and its inputs are
  const char* input_name;    // of an answer: "image", "text"
  const char* predict_help;  // what `bonfire predict` wants
  OpenedData (*open)(const Config& config);
  // One of the two: what its models make of an input, or how they go on with it.
  std::unique_ptr<Answerer> (*answerer)(const std::filesystem::path& run,
                                        std::span<const std::string> overrides) = nullptr;
  std::unique_ptr<Writer> (*writer)(const std::filesystem::path& run, const std::filesystem::path& weights,
                                    std::span<const std::string> overrides) = nullptr;
};

std::span<const KnownTask* const> known_tasks();
const KnownTask& known_task_of(const std::string& model);  // ConfigError for a model that there is not

// The run of a place: the place itself; of a file or a checkpoint the folder around it that has a config.yaml.
// ConfigError where there is none.
std::filesystem::path run_of(const std::filesystem::path& place);

// What weights of a program's own task say it is, in their file.
inline constexpr const char* kTaskOfProgram = "task_of_program";

// ConfigError where its weights are those of a program's own task, which only that program can put to use.
void require_known_task(const std::filesystem::path& run);

}  // namespace bonfire::train
