#pragma once
// What `bonfire train` does, as a struct and as YAML.
//
//   train::Config config = train::load_config("configs/mnist.yaml", {{"lr=0.05", "strategy.use_amp=true"}});
//
// A file may begin from others (`include: base.yaml`, or a list): later ones and the file itself win, `key=value`
// overrides win over all. Keys that do not exist, values of another type and values out of range are ConfigErrors that
// name the file, the line and, for a misspelt key, the nearest right one. Every key is described in config_keys.h. What
// settings say together is checked too (config_rules.h), but beside `resume`: there the run's own count as well.

#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "bonfire/graph/mesh.h"
#include "bonfire/nn/split.h"
#include "bonfire/parallel/placement.h"
#include "bonfire/parallel/strategy.h"
#include "bonfire/tensor/device.h"
#include "bonfire/train/trainer/interval.h"

namespace bonfire::train {

struct MeshConfig {
  std::optional<int64_t> data = {};  // empty: what the others leave
  int64_t pipeline = 1, tensor = 1;
  std::vector<std::string> order = {"tensor", "data", "pipeline"};  // neighbours first
};

// Of a variable that ranks share out: `0`, or `0/3` for 3 matrices that are packed along axis 0.
struct SplitAxis {
  int64_t axis = 0, blocks = 1;
};

struct PipelineConfig {
  std::optional<int64_t> micro_batches = {};  // empty: four for each rank
  std::string schedule = "1f1b";
  std::optional<int64_t> chunks = {};                // stages of each rank; empty: 2 where interleaved, else 1
  std::optional<std::vector<std::string>> cut = {};  // the first module of each further stage; empty: balanced
};

struct Config {
  uint64_t seed = 1;
  std::string model = "mnist_cnn";
  std::optional<int64_t> num_classes = {};  // empty: as the data has
  std::optional<int64_t> image_size = {};   // empty: as the data is
  std::string data = "generated";
  std::string train_file, test_file;
  int64_t seq_length = 64;  // tokens
  bool lower_case = true;
  std::optional<int64_t> layers = {}, heads = {}, width = {}, context = {};  // empty: the model's own
  std::optional<double> dropout = {};                                        // likewise
  double test_share = 0.1;
  double validation_share = 0;        // of the training samples
  std::optional<int64_t> limit = {};  // training samples; empty: all
  std::string output = "runs";
  std::string resume, init_from;
  bool resume_anyway = false;
  bool strict = true;

  std::string crop = "auto";
  std::vector<double> crop_area = {0.08, 1}, crop_ratio = {0.75, 1.3333333333333333};
  int64_t crop_padding = 4;
  double center_crop = 0.875;
  std::optional<double> flip = {};  // empty: 0.5 of pictures in folders, else none
  double random_erasing = 0;
  std::optional<double> mixup = {};                              // empty: off
  std::optional<std::vector<double>> mean = {}, deviation = {};  // empty: as measured

  int64_t batch_size = 64;
  bool drop_last = true;
  int64_t epochs = 3;
  std::optional<int64_t> steps = {};  // empty: as many as the epochs have
  std::string optimizer = "momentum";
  double lr = 0.02;
  double momentum = 0.9;
  double weight_decay = 0;
  std::string weight_decay_of = "all";
  std::string schedule = "constant";
  std::vector<double> milestones = {};
  double gamma = 0.1;
  double warmup_epochs = 0;
  double warmup_start_lr = 0;
  bool scale_lr = false;
  std::optional<double> clip_grad_norm = {};  // empty: off
  std::optional<double> ema_decay = {};       // empty: off
  std::optional<int64_t> early_stop = {};     // evaluations without gain; empty: off

  int64_t num_workers = 1;
  bool pin_memory = false;
  int64_t log_freq = 50;
  Interval eval_freq = {}, save_freq = {};
  int64_t keep_last = 3;

  std::string place = "auto";
  Placement placement = {};  // empty: all of the model is at `place`
  int64_t num_gpus = 1;
  std::string backend = "auto";
  std::string balance = "equal";
  double collective_timeout = 300;              // seconds
  std::optional<int64_t> check_replicas = 500;  // steps; empty: off
  MeshConfig mesh;
  std::map<std::string, SplitAxis> tensor_split = {};  // by paths of variables; empty: the model's own plan
  PipelineConfig pipeline;
  DistributedStrategy strategy;

  std::vector<std::string> given = {};  // keys that a file, the environment or the command line has set
};

Config load_config(const std::filesystem::path& path, std::span<const std::string> overrides = {});
Config default_config(std::span<const std::string> overrides = {});  // with no file at all

// `name` says where the text came from, for errors and for what it includes.
Config parse_config(const std::string& yaml, const std::string& name, std::span<const std::string> overrides = {});

// The settings as they are written there, for those of a run that is gone on with: they may be of another machine, and
// count only where nothing else is given. Neither the environment nor check_config() has a say.
Config parse_config_of_run(const std::string& yaml, const std::string& name);

// The devices that `place` names. ConfigError for what is no device, and for several of them in several processes.
std::vector<Device> places_of(const Config& config);

std::vector<nn::Split> splits_of(const Config& config);
MeshSizes mesh_of(const Config& config);  // ConfigError for an order that does not name each axis once
int64_t chunks_of(const Config& config);  // of pipeline.schedule: stages of each rank
// Of a batch, over so many ranks along the pipeline axis; unless it is said four for each, which keep the idle share
// below a fifth.
int64_t micro_batches_of(const Config& config, int64_t ranks);

// Every key but those that are left out; parse_config gives the same Config back.
std::string to_yaml(const Config& config, std::span<const std::string_view> without = {});
// Every key with its value as it is written there.
std::vector<std::pair<std::string, std::string>> settings_of(const Config& config);
// The strategy with each value as if it was chosen, since a configuration is whole: what it does not name is the
// default, whatever this process has trained before. But num_threads: devices that are in use keep theirs.
DistributedStrategy chosen_strategy(Config config);
std::string config_reference();  // docs/configuration.md

// Every key, with the values it may have where those are few.
std::vector<std::pair<std::string, std::vector<std::string>>> config_keys();

}  // namespace bonfire::train
