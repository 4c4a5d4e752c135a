#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "bonfire/base/error.h"
#include "bonfire/train/masked_words.h"
#include "bonfire/train/open_data.h"
#include "bonfire/train/predictor.h"
#include "tools/command.h"

namespace bonfire::tools {

namespace {

struct PredictWanted {
  std::string run, place;
  std::vector<std::string> inputs;
  int64_t top = 3;
  bool json = false;
};

struct Named {
  std::string name;
  double probability, logit;
  int64_t label;  // of a class; of a word: -1
};

// What of: "image" or "text".
void print(const char* what, const std::string& of, const std::vector<Named>& guesses, bool as_json) {
  nlohmann::json list = nlohmann::json::array();
  std::vector<std::string> words;
  for (const Named& guess : guesses) {
    nlohmann::json one{{"label", guess.name}, {"probability", guess.probability}, {"logit", guess.logit}};
    if (guess.label >= 0) one["class"] = guess.label;
    list.push_back(std::move(one));
    words.push_back(fmt::format("{} {:.1f} %", guess.name, 100 * guess.probability));
  }
  std::string text = as_json ? nlohmann::json{{what, of}, {"guesses", std::move(list)}}.dump(
                                   -1, ' ', false, nlohmann::json::error_handler_t::replace)
                             : fmt::format("{}: {}", of, fmt::join(words, ", "));
  std::printf("%s\n", text.c_str());
}

void predict_images(const PredictWanted& wanted, const std::vector<std::string>& overrides) {
  train::Predictor predictor(wanted.run, overrides);
  for (const std::string& file : wanted.inputs) {
    std::vector<data::Array> images = predictor.open(file);
    auto guesses = predictor.guesses(images, static_cast<size_t>(wanted.top));
    for (size_t i = 0; i < guesses.size(); ++i) {
      std::vector<Named> named;
      for (const train::Guess& guess : guesses[i])
        named.push_back({predictor.class_names().at(static_cast<size_t>(guess.label)), guess.probability, guess.logit,
                         guess.label});
      print("image", images.size() == 1 ? file : fmt::format("{}[{}]", file, i), named, wanted.json);
    }
  }
}

void predict_words(const PredictWanted& wanted, const std::vector<std::string>& overrides) {
  train::MaskedWords words(wanted.run, overrides);
  for (const std::string& sentence : wanted.inputs)
    for (const std::vector<train::WordGuess>& guesses : words.guesses(sentence, static_cast<size_t>(wanted.top))) {
      std::vector<Named> named;
      for (const train::WordGuess& guess : guesses) named.push_back({guess.piece, guess.probability, guess.logit, -1});
      print("text", sentence, named, wanted.json);
    }
}

int run_predict(const PredictWanted& wanted) {
  if (wanted.inputs.empty())
    throw_error<ConfigError>(
        "[predict] which images? name JPEG, PNG or IDX files; of a run on text, sentences with [MASK] in them");
  if (wanted.top < 1) throw_error<ConfigError>("[predict] --top is {}, expected at least 1", wanted.top);
  std::vector<std::string> overrides;
  if (!wanted.place.empty()) overrides.push_back("place=" + wanted.place);
  if (train::reads_text(train::load_config(std::filesystem::path(wanted.run) / "config.yaml"))) {
    predict_words(wanted, overrides);
  } else {
    predict_images(wanted, overrides);
  }
  return 0;
}

}  // namespace

void add_predict(Command program) {
  Command command = program.add(
      "predict", "Says what the best weights of a run take images for, or which words they would put into a text",
      "bonfire predict runs/1 seven.png                 seven.png: 7 99.2 %, 1 0.4 %, 9 0.1 %\n"
      "bonfire predict runs/1 t10k-images-idx3-ubyte    every image of an IDX file\n"
      "bonfire predict runs/1 *.jpg --top 1 --json      a JSON object a line, for scripts\n"
      "bonfire predict runs/2 \"the sky is [MASK] .\"    a run on text: blue 80.1 %, dark 11.0 %, grey 3.2 %");
  auto wanted = std::make_shared<PredictWanted>();
  command.argument("run", wanted->run, "the run's folder");
  command.arguments("inputs", wanted->inputs,
                    "JPEG, PNG or IDX files (these also gzipped); of a run on text: sentences with [MASK] in them");
  command.option("--top", wanted->top, "how many classes or words to name for each (3)");
  command.option("--place", wanted->place, "cpu, cuda, cuda:1, ... where it is not the run's own");
  command.option("--json", wanted->json, "print one JSON object a line");
  command.runs([wanted] { return run_predict(*wanted); });
}

}  // namespace bonfire::tools
