#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "bonfire/base/error.h"
#include "bonfire/train/tasks/known_tasks.h"
#include "tools/command.h"

namespace bonfire::tools {

namespace {

constexpr int64_t kTop = 3;

struct PredictWanted {
  std::string run, place;
  std::vector<std::string> inputs;
  int64_t top = kTop;
  bool json = false;
  train::WritingOptions writing = {};
};

// What of: "image" or "text".
void print(const char* what, const train::Answer& answer, bool as_json) {
  nlohmann::json list = nlohmann::json::array();
  std::vector<std::string> words;
  for (const train::Answer::Guess& guess : answer.guesses) {
    nlohmann::json one{{"label", guess.label}, {"probability", guess.probability}, {"logit", guess.logit}};
    if (guess.number) one["class"] = *guess.number;
    list.push_back(std::move(one));
    words.push_back(fmt::format("{} {:.1f} %", guess.label, 100 * guess.probability));
  }
  nlohmann::json all{{what, answer.of}, {"guesses", std::move(list)}};
  std::string text = fmt::format("{}: {}", answer.of, fmt::join(words, ", "));
  if (!answer.box.empty()) {
    all["box"] = answer.box;
    text += fmt::format("; box from {:.2f} {:.2f} to {:.2f} {:.2f}", answer.box[0], answer.box[1], answer.box[2],
                        answer.box[3]);
  }
  if (as_json) text = all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::printf("%s\n", text.c_str());
}

// The text with what the run goes on with, token by token as they come.
void write_on(const train::Writer& writer, const PredictWanted& wanted) {
  for (const std::string& prompt : wanted.inputs) {
    std::string written;
    if (!wanted.json) std::printf("%s", prompt.c_str());
    const int64_t tokens = writer.write(prompt, wanted.writing, [&](std::string_view bytes) {
      written += bytes;
      if (wanted.json) return;
      std::fwrite(bytes.data(), 1, bytes.size(), stdout);
      std::fflush(stdout);
    });
    const nlohmann::json all{{"text", prompt}, {"continuation", written}, {"tokens", tokens}};
    std::printf("%s\n", wanted.json ? all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str() : "");
  }
}

// Options that are for tasks of the other kind.
void refuse_options(const PredictWanted& wanted, const train::KnownTask& task) {
  const train::WritingOptions usual;
  const train::WritingOptions& given = wanted.writing;
  const std::pair<const char*, bool> of_writers[] = {{"--tokens", given.tokens != usual.tokens},
                                                     {"--temperature", given.temperature != usual.temperature},
                                                     {"--top_k", given.top_k != usual.top_k},
                                                     {"--seed", given.seed != usual.seed}};
  for (const auto& [name, is_given] : of_writers)
    if (is_given && task.writer == nullptr)
      throw_error<ConfigError>("[predict] {} is for runs that go on with a text, and {} is of one on {}; leave it out",
                               name, wanted.run, task.reads);
  if (wanted.top != kTop && task.writer != nullptr)
    throw_error<ConfigError>(
        "[predict] --top is for runs that name classes or words, and {} is of one on {}; leave it "
        "out (--top_k says of how many tokens one is drawn)",
        wanted.run, task.reads);
}

int run_predict(const PredictWanted& wanted) {
  if (wanted.inputs.empty()) {
    std::vector<std::string> wants;
    for (const train::KnownTask* task : train::known_tasks())
      wants.push_back(fmt::format("{}: {}", task->reads, task->predict_help));
    throw_error<ConfigError>("[predict] of what? Name what the run's task wants. {}", fmt::join(wants, "; "));
  }
  const std::filesystem::path run = train::run_of(wanted.run);
  train::require_known_task(run);
  const train::KnownTask& task = train::known_task_of(train::load_config(run / "config.yaml").model);
  refuse_options(wanted, task);
  if (wanted.top < 1) throw_error<ConfigError>("[predict] --top is {}, expected at least 1", wanted.top);
  std::vector<std::string> overrides;
  if (!wanted.place.empty()) overrides.push_back("place=" + wanted.place);
  if (task.writer != nullptr) {
    write_on(*task.writer(run, wanted.run, overrides), wanted);
    return 0;
  }
  if (run != std::filesystem::path(wanted.run))
    throw_error<ConfigError>("[predict] {} is no run: of runs on {} the best weights are used; name the folder, {}",
                             wanted.run, task.reads, run.string());
  const std::unique_ptr<train::Answerer> answerer = task.answerer(run, overrides);
  for (const std::string& input : wanted.inputs)
    for (const train::Answer& answer : answerer->answers(input, static_cast<size_t>(wanted.top)))
      print(task.input_name, answer, wanted.json);
  return 0;
}

}  // namespace

void add_predict(Command program) {
  Command command = program.add(
      "predict", "Says what the best weights of a run make of images, texts or sequences, as its task is",
      "bonfire predict runs/1 seven.png                 seven.png: 7 99.2 %, 1 0.4 %, 9 0.1 %\n"
      "bonfire predict runs/1 t10k-images-idx3-ubyte    every image of an IDX file\n"
      "bonfire predict runs/1 *.jpg --top 1 --json      a JSON object a line, for scripts\n"
      "bonfire predict runs/2 \"the sky is [MASK] .\"    a run on text: blue 80.1 %, dark 11.0 %, grey 3.2 %\n"
      "bonfire predict runs/3 found.png                 of boxes: 7 99.2 %; box from 0.12 0.30 to 0.55 0.81\n"
      "bonfire predict runs/4 \"f a > b\"                of sequences: b 98.0 %, a 0.9 %, c 0.5 %\n"
      "bonfire predict runs/5 \"The fire\" --tokens 100 --temperature 0.8     of running text: goes on with it");
  auto wanted = std::make_shared<PredictWanted>();
  command.argument("run", wanted->run,
                   "the run's folder; of one on running text also a checkpoint or a file of weights in it");
  command.arguments("inputs", wanted->inputs,
                    "JPEG, PNG or IDX files (these also gzipped); of a run on text: sentences with [MASK] in them; of "
                    "one on sequences: symbols with spaces between them; of one on running text: texts to go on with");
  command.option("--top", wanted->top, "how many classes or words to name for each (3)");
  command.option("--tokens", wanted->writing.tokens, "of running text: how many tokens to go on (64)");
  command.option("--temperature", wanted->writing.temperature,
                 "of running text: 0 always takes the likeliest token, 1 draws them as the model has them, less in "
                 "between (0)");
  command.option("--top_k", wanted->writing.top_k, "of running text: draw from the so many likeliest tokens only");
  command.option("--seed", wanted->writing.seed, "of running text: other numbers draw other texts (1)");
  command.option("--place", wanted->place, "cpu, cuda, cuda:1, ... where it is not the run's own");
  command.option("--json", wanted->json, "print one JSON object a line");
  command.runs([wanted] { return run_predict(*wanted); });
}

}  // namespace bonfire::tools
