#pragma once
// Fingerprint: what an experiment is, made when it begins: its configuration with the seed, its data (where from, how
// many samples, a hash over some of them) and the version of the code. It is stored in every checkpoint (state.json),
// compared when a run is gone on with, and by all ranks before they train.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bonfire/train/config/config.h"
#include "bonfire/train/data/data_content.h"
#include "bonfire/train/data/open_data.h"

namespace bonfire::train {

struct Fingerprint {
  using Values = std::vector<std::pair<std::string, std::string>>;
  Values settings = {};                               // every key, but for where the run is kept
  std::string data = {}, classes = {}, version = {};  // data: where it is; classes: how many, and a hash of their names
  DataContent train = {}, test = {};
  std::string own = {};  // of a program's own parts: the model with a hash over its structure, and the task
};

Fingerprint fingerprint_of(const Config& config, const OpenedData& data);

nlohmann::json to_json(const Fingerprint& print);
Fingerprint fingerprint_from(const nlohmann::json& json);  // nlohmann::json::exception where that is none
// Of a checkpoint; nothing where a version before fingerprints saved it. DataError for one that cannot be read.
std::optional<Fingerprint> fingerprint_in(const std::filesystem::path& checkpoint);
std::string hash_of(const Fingerprint& print);  // 16 hexadecimal digits

// Whether scores of both are of the same images: those that are held back follow from training data, share and seed.
bool is_judged_alike(const Fingerprint& before, const Fingerprint& now);

// What a run would be another experiment by, in words: "seed was 1 and is 2". Keys that may change (lr, epochs,
// batch_size, strategy …) are not among it, nor is data that lies elsewhere and is the same.
std::vector<std::string> other_experiment(const Fingerprint& before, const Fingerprint& now);

bool is_of_the_experiment(std::string_view key);  // whether another value makes it another experiment
bool is_where_data_lies(std::string_view key);    // a key that names data

// What all ranks of a job must have alike: settings but for those of one process (place, num_workers, where files are),
// and the content of the data.
Fingerprint::Values shared_settings(const Config& config);
Fingerprint::Values shared_data(const Fingerprint& print);

}  // namespace bonfire::train
