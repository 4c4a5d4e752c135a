#include "bonfire/train/config/config_rules.h"

#include <algorithm>
#include <cmath>

#include "bonfire/base/error.h"
#include "bonfire/base/machine.h"

namespace bonfire::train {

namespace {

// A setting other than the default, which only counts where another one asks for it.
struct Dependent {
  const char* key;
  bool given;   // it is not the default
  bool counts;  // beside the others as they are
  const char* needs;
};

void refuse_without_effect(const Config& c) {
  const Config usual;
  const bool may_crop = c.crop == "resized" || c.crop == "auto", steps_down = c.schedule == "multi_step";
  const Dependent all[] = {
      {"strict", c.strict != usual.strict, !c.init_from.empty(), "init_from"},
      {"resume_anyway", c.resume_anyway, !c.resume.empty(), "resume"},
      {"crop_area", c.crop_area != usual.crop_area, may_crop, "crop: resized"},
      {"crop_ratio", c.crop_ratio != usual.crop_ratio, may_crop, "crop: resized"},
      {"center_crop", c.center_crop != usual.center_crop, may_crop, "crop: resized"},
      {"crop_padding", c.crop_padding != usual.crop_padding, c.crop == "padded", "crop: padded"},
      {"momentum", c.momentum != usual.momentum && c.momentum != 0, has_momentum(c),
       "optimizer: momentum, nesterov or lars"},
      {"milestones", !c.milestones.empty(), steps_down, "schedule: multi_step"},
      {"gamma", c.gamma != usual.gamma, steps_down, "schedule: multi_step"},
      {"tensor.split", !c.tensor_split.empty(), c.mesh.tensor > 1, "mesh.tensor above 1"},
      {"weight_decay_of", c.weight_decay_of != usual.weight_decay_of, c.weight_decay > 0, "weight_decay"},
      {"warmup_start_lr", c.warmup_start_lr != usual.warmup_start_lr, c.warmup_epochs > 0, "warmup_epochs"},
      {"pipeline.micro_batches", c.pipeline.micro_batches.has_value(), c.mesh.pipeline > 1, "mesh.pipeline above 1"},
      {"pipeline.schedule", c.pipeline.schedule != usual.pipeline.schedule, c.mesh.pipeline > 1,
       "mesh.pipeline above 1"},
      {"pipeline.chunks", c.pipeline.chunks.has_value(), c.pipeline.schedule == "interleaved",
       "pipeline.schedule: interleaved"},
      {"pipeline.cut", c.pipeline.cut.has_value(), c.mesh.pipeline > 1, "mesh.pipeline above 1"},
  };
  for (const Dependent& one : all)
    if (one.given && !one.counts)
      throw_error<ConfigError>("[config] {0} has no effect without {1}; add {1}, or leave {0} out", one.key, one.needs);
}

void refuse_beside_placement(const Config& c) {
  if (c.placement.empty()) return;
  if (c.place.find(',') != std::string::npos)
    throw_error<ConfigError>(
        "[config] place names several devices ({}), each of which has the whole model, and placement parts the model; "
        "leave one of them out, or start several ranks, each with devices of its own",
        c.place);
  if (c.mesh.tensor > 1 || c.mesh.pipeline > 1)
    throw_error<ConfigError>(
        "[config] placement puts modules of one process on its devices, and does not go with mesh.{} yet; leave one of "
        "them out",
        c.mesh.tensor > 1 ? "tensor" : "pipeline");
}

void refuse_what_contradicts(const Config& c) {
  refuse_beside_placement(c);
  if (c.schedule == "multi_step" && c.milestones.empty())
    throw_error<ConfigError>(
        "[config] schedule: multi_step needs milestones, the epochs at which the rate goes down: milestones=[30, 60]");
  for (size_t i = 1; i < c.milestones.size(); ++i)
    if (c.milestones[i] <= c.milestones[i - 1])
      throw_error<ConfigError>("[config] milestones are {} and then {}, expected each to be later than the one before",
                               c.milestones[i - 1], c.milestones[i]);
  if (c.train_file.empty() != c.test_file.empty())
    throw_error<ConfigError>("[config] train_file and test_file must both be given, or neither");
  if (c.balance == "auto" && c.strategy.use_local_sgd)
    throw_error<ConfigError>(
        "[config] balance: auto weighs the gradients of all ranks by their shares, and with strategy.use_local_sgd "
        "each "
        "rank has a gradient of its own; leave one of them out");
}

void check_mesh(const Config& c) {
  mesh_of(c);
  if (c.mesh.tensor == 1) return;
  if (c.balance == "auto")
    throw_error<ConfigError>(
        "[config] balance: auto gives slow ranks fewer samples, and ranks along mesh.tensor share the same ones; leave "
        "one of them out");
  if (c.strategy.use_local_sgd)
    throw_error<ConfigError>(
        "[config] strategy.use_local_sgd spares ranks from meeting at each step, and ranks along mesh.tensor share the "
        "work of each layer; leave one of them out");
}

// Other settings of a run in stages.
void check_pipeline(const Config& c) {
  if (c.balance == "auto")
    throw_error<ConfigError>(
        "[config] balance: auto gives slow ranks fewer samples, and ranks along mesh.pipeline have the same ones; "
        "leave one of them out, and cut so that slow ranks have less to compute (pipeline.cut)");
  const int64_t chunks = chunks_of(c), stages = c.mesh.pipeline * chunks;
  if (c.pipeline.cut && static_cast<int64_t>(c.pipeline.cut->size()) + 1 != stages)
    throw_error<ConfigError>(
        "[config] pipeline.cut names {} modules, and mesh.pipeline is {}{}: name the first module of each stage but "
        "the first, {} in all",
        c.pipeline.cut->size(), c.mesh.pipeline, chunks > 1 ? fmt::format(", with {} stages each", chunks) : "",
        stages - 1);
  if (c.pipeline.micro_batches && *c.pipeline.micro_batches > c.batch_size)
    throw_error<ConfigError>("[config] pipeline.micro_batches is {}, and batch_size {}: expected at most as many",
                             *c.pipeline.micro_batches, c.batch_size);
}

// Bytes of an image in a batch: as it is read, and as the model sees it. Of one channel, since the data is not known.
constexpr double kBytesOfPixel = 1 + sizeof(float);

void refuse_what_the_machine_cannot(const Config& c) {
  const std::pair<const char*, int64_t> tasks[] = {{"num_workers", c.num_workers},
                                                   {"num_gpus", c.num_gpus},
                                                   {"strategy.num_threads", c.strategy.num_threads},
                                                   {"strategy.cpu_threads", c.strategy.cpu_threads.value_or(1)}};
  for (const auto& [key, asked] : tasks)
    if (asked > base::most_tasks())
      throw_error<ConfigError>("[config] {} is {}, expected at most {} on this machine", key, asked,
                               base::most_tasks());
  const auto memory = static_cast<double>(base::memory_bytes()), batch = static_cast<double>(c.batch_size);
  const auto size = static_cast<double>(c.image_size.value_or(1));
  if (batch * kBytesOfPixel > memory)
    throw_error<ConfigError>("[config] batch_size is {}, expected at most {} in the {:.1f} GB of this machine",
                             c.batch_size, static_cast<int64_t>(memory / kBytesOfPixel), memory / 1e9);
  if (size * size * batch * kBytesOfPixel > memory)
    throw_error<ConfigError>(
        "[config] image_size is {}: {} such images do not fit into the {:.1f} GB of this machine, expected at most {}",
        *c.image_size, c.batch_size, memory / 1e9, static_cast<int64_t>(std::sqrt(memory / batch / kBytesOfPixel)));
}

}  // namespace

void check_config(const Config& config) {
  refuse_without_effect(config);
  refuse_what_contradicts(config);
  check_strategy(config.strategy);
  check_mesh(config);
  if (config.mesh.pipeline > 1) check_pipeline(config);
  if (config.backend == "nccl") throw_error<ConfigError>("[config] backend: nccl is not available yet; leave it out");
  refuse_what_the_machine_cannot(config);
}

bool has_momentum(const Config& config) {
  return config.optimizer == "momentum" || config.optimizer == "nesterov" || config.optimizer == "lars";
}

bool is_planned_key(std::string_view name) {
  constexpr std::string_view kKeys[] = {"strategy.mode", "strategy.ps", "strategy.offload_optimizer",
                                        "strategy.use_tf32"};
  return std::ranges::any_of(
      kKeys, [&](std::string_view key) { return name == key || (name.starts_with(key) && name[key.size()] == '.'); });
}

}  // namespace bonfire::train
