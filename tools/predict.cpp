#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "bonfire/base/error.h"
#include "bonfire/train/predictor.h"
#include "tools/command.h"

namespace bonfire::tools {

namespace {

struct Wanted {
  std::string run, place;
  std::vector<std::string> files;
  int64_t top = 3;
  bool json = false;
};

void print(const std::string& image, const std::vector<train::Guess>& guesses, const train::Predictor& predictor,
           bool as_json) {
  nlohmann::json list = nlohmann::json::array();
  std::vector<std::string> words;
  for (const train::Guess& guess : guesses) {
    const std::string& name = predictor.class_names().at(static_cast<size_t>(guess.label));
    list.push_back(
        {{"class", guess.label}, {"label", name}, {"probability", guess.probability}, {"logit", guess.logit}});
    words.push_back(fmt::format("{} {:.1f} %", name, 100 * guess.probability));
  }
  std::string text = as_json ? nlohmann::json{{"image", image}, {"guesses", std::move(list)}}.dump()
                             : fmt::format("{}: {}", image, fmt::join(words, ", "));
  std::printf("%s\n", text.c_str());
}

int run(const Wanted& wanted) {
  if (wanted.files.empty()) throw_error<ConfigError>("[predict] which images? name JPEG, PNG or IDX files");
  if (wanted.top < 1) throw_error<ConfigError>("[predict] --top is {}, expected at least 1", wanted.top);
  std::vector<std::string> overrides;
  if (!wanted.place.empty()) overrides.push_back("place=" + wanted.place);
  train::Predictor predictor(wanted.run, overrides);
  for (const std::string& file : wanted.files) {
    std::vector<data::Array> images = predictor.open(file);
    auto guesses = predictor.guesses(images, static_cast<size_t>(wanted.top));
    for (size_t i = 0; i < guesses.size(); ++i)
      print(images.size() == 1 ? file : fmt::format("{}[{}]", file, i), guesses[i], predictor, wanted.json);
  }
  return 0;
}

}  // namespace

void add_predict(Command program) {
  Command command =
      program.add("predict", "Says what the best weights of a run take images for",
                  "bonfire predict runs/1 seven.png                 seven.png: 7 99.2 %, 1 0.4 %, 9 0.1 %\n"
                  "bonfire predict runs/1 t10k-images-idx3-ubyte    every image of an IDX file\n"
                  "bonfire predict runs/1 *.jpg --top 1 --json      a JSON object a line, for scripts");
  auto wanted = std::make_shared<Wanted>();
  command.argument("run", wanted->run, "the run's folder");
  command.arguments("files", wanted->files, "JPEG, PNG or IDX files (these also gzipped)");
  command.option("--top", wanted->top, "how many classes to name for each image (3)");
  command.option("--place", wanted->place, "cpu, cuda, cuda:1, ... where it is not the run's own");
  command.option("--json", wanted->json, "print one JSON object a line");
  command.runs([wanted] { return run(*wanted); });
}

}  // namespace bonfire::tools
