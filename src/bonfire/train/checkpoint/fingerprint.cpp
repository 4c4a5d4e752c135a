#include "bonfire/train/checkpoint/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "bonfire/base/error.h"
#include "bonfire/base/hash.h"
#include "bonfire/comm/rendezvous.h"
#include "bonfire/runtime/build_stamp.h"
#include "bonfire/train/checkpoint/checkpoint.h"

namespace bonfire::train {

namespace {

using nlohmann::json;

bool is_one_of(std::string_view key, std::span<const std::string_view> keys) {
  return std::ranges::find(keys, key) != keys.end();
}

// With another value of these a run is another experiment. Where the data lies is not: what it holds is.
constexpr std::string_view kOfTheExperiment[] = {
    "model",      "num_classes", "seed",         "test_share",      "limit",   "image_size",     "seq_length",
    "lower_case", "layers",      "heads",        "width",           "context", "dropout",        "crop",
    "crop_area",  "crop_ratio",  "crop_padding", "center_crop",     "flip",    "random_erasing", "mixup",
    "mean",       "deviation",   "optimizer",    "validation_share"};

constexpr std::string_view kNamingData[] = {"data", "train_file", "test_file"};
constexpr std::string_view kOfTheFolder[] = {"output", "resume", "resume_anyway"};

// What is a rank's own, or asked of the first rank only. Data is compared by what it holds.
constexpr std::string_view kOfOneProcess[] = {
    "place",  "placement", "num_gpus",      "num_workers", "pin_memory", "strategy.num_threads", "strategy.cpu_threads",
    "output", "resume",    "resume_anyway", "init_from"};

std::string where_data_is(const Config& config) {
  return config.train_file.empty() ? config.data : config.train_file + " and " + config.test_file;
}

std::string build_name() {
  base::Hash128 hash;
  hash.mix(std::string_view(runtime::build_stamp()));
  return fmt::format("{:08x}", hash.low >> 32U);
}

std::string hex(const base::Hash128& hash) { return fmt::format("{:016x}", hash.low); }

json to_json(const DataContent& content) { return {{"samples", content.samples}, {"hash", content.hash}}; }
DataContent content_from(const json& words) { return {words.at("samples"), words.at("hash")}; }

}  // namespace

bool is_of_the_experiment(std::string_view key) { return is_one_of(key, kOfTheExperiment); }
bool is_where_data_lies(std::string_view key) { return is_one_of(key, kNamingData); }

Fingerprint fingerprint_of(const Config& config, const OpenedData& data) {
  Fingerprint print{.data = where_data_is(config),
                    .version = fmt::format("{}, build {}", comm::library_version(), build_name()),
                    .train = data.train_content,
                    .test = data.test_content};
  for (auto& setting : settings_of(config))
    if (!is_one_of(setting.first, kOfTheFolder)) print.settings.push_back(std::move(setting));
  base::Hash128 names;
  for (const std::string& name : data.class_names) names.mix(std::string_view(name));
  print.classes = fmt::format("{} (hash of their names {})", data.classes, hex(names));
  return print;
}

json to_json(const Fingerprint& print) {
  json settings = json::object();
  for (const auto& [key, value] : print.settings) settings[key] = value;
  json words{{"settings", settings},          {"data", print.data},          {"classes", print.classes},
             {"train", to_json(print.train)}, {"test", to_json(print.test)}, {"version", print.version}};
  if (!print.own.empty()) words["own"] = print.own;
  return words;
}

Fingerprint fingerprint_from(const json& words) {
  Fingerprint print{.data = words.at("data"),
                    .classes = words.at("classes"),
                    .version = words.at("version"),
                    .train = content_from(words.at("train")),
                    .test = content_from(words.at("test")),
                    .own = words.value("own", "")};
  for (const auto& [key, value] : words.at("settings").items()) print.settings.emplace_back(key, value);
  return print;
}

std::optional<Fingerprint> fingerprint_in(const std::filesystem::path& checkpoint) {
  const json state = json::parse(read_checkpoint_state(checkpoint), nullptr, false);
  if (!state.is_object() || !state.contains("fingerprint")) return {};
  try {
    return fingerprint_from(state["fingerprint"]);
  } catch (const json::exception& error) {
    throw_error<DataError>("[train] {}: the fingerprint: {}", (checkpoint / "state.json").string(), error.what());
  }
}

std::string hash_of(const Fingerprint& print) {
  base::Hash128 hash;
  hash.mix(std::string_view(to_json(print).dump(-1, ' ', false, json::error_handler_t::replace)));
  return hex(hash);
}

bool is_judged_alike(const Fingerprint& before, const Fingerprint& now) {
  const std::map<std::string, std::string> old(before.settings.begin(), before.settings.end()),
      current(now.settings.begin(), now.settings.end());
  auto is_same = [&](const std::string& key) {
    const auto was = old.find(key), is = current.find(key);
    return was == old.end() || is == current.end() || was->second == is->second;
  };
  if (before.test != now.test || !is_same("validation_share")) return false;
  const auto share = current.find("validation_share");
  const bool holds_back = share != current.end() && std::stod(share->second) > 0;
  return !holds_back || (is_same("seed") && before.train == now.train);
}

std::vector<std::string> other_experiment(const Fingerprint& before, const Fingerprint& now) {
  std::vector<std::string> differences;
  const std::map<std::string, std::string> old(before.settings.begin(), before.settings.end());
  for (const auto& [key, value] : now.settings) {
    auto found = old.find(key);
    if (is_of_the_experiment(key) && found != old.end() && found->second != value)
      differences.push_back(fmt::format("{} was {} and is {}", key, found->second, value));
  }
  if (before.own != now.own)
    differences.push_back(fmt::format("the program trained {} and trains {}", before.own, now.own));
  auto compare = [&](const char* part, const DataContent& was, const DataContent& is) {
    if (was == is) return;
    differences.push_back(fmt::format("the {} data was {} of {} and is {} of {}", part, in_words(was), before.data,
                                      in_words(is), now.data));
  };
  compare("training", before.train, now.train);
  compare("test", before.test, now.test);
  if (before.classes != now.classes)
    differences.push_back(fmt::format("the classes were {} and are {}", before.classes, now.classes));
  return differences;
}

Fingerprint::Values shared_settings(const Config& config) {
  Fingerprint::Values values = settings_of(config);
  std::erase_if(values, [](const auto& setting) {
    return is_one_of(setting.first, kOfOneProcess) || is_where_data_lies(setting.first);
  });
  return values;
}

Fingerprint::Values shared_data(const Fingerprint& print) {
  return {{"the training data", in_words(print.train)},
          {"the test data", in_words(print.test)},
          {"the classes", print.classes},
          {"the program's model and task", print.own}};
}

}  // namespace bonfire::train
