#pragma once
// Every key of a configuration, in one place: its name, where it is kept, what it may be and what it means. Reading,
// writing and the reference page all walk this list. A default is what the struct says.

#include <limits>
#include <string_view>
#include <vector>

#include "bonfire/train/config/config.h"

namespace bonfire::train {

struct KeyOptions {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool above = false;                          // least itself is out of range
  bool below = false;                          // so is most
  std::vector<std::string_view> choices = {};  // of a text
  std::string_view empty = "auto";             // how "no value" is written, where a key may have none
};

std::vector<std::string_view> model_names();

// Calls visit.section(name), visit.key(name, member, meaning, options).
template <class AnyConfig, class Visitor>
void visit_keys(AnyConfig& c, Visitor& visit) {
  const KeyOptions any{}, whole{.least = 0}, some{.least = 1}, positive{.least = 0, .above = true},
      share{.least = 0, .most = 1};

  visit.section("What is trained");
  visit.key("model", c.model, "what is trained", {.choices = model_names()});
  visit.key("num_classes", c.num_classes, "classes of the last layer; auto: as many as the data has", some);
  visit.key("init_from", c.init_from,
            "weights to begin from: a run's folder (its best), a checkpoint's, or a safetensors file", any);
  visit.key("strict", c.strict, "whether init_from must have exactly the model's parameters; false: what fits is taken",
            any);
  visit.key("seed", c.seed, "seed of weights, order, augmentation and dropout", any);

  visit.section("Data");
  visit.key(
      "data", c.data,
      "`generated` (what is built in: drawn digits, sentences where the model reads text, digits with boxes for "
      "two_headed, sequences of symbols for lstm_classifier), or a folder: MNIST's "
      "four IDX files, plain or gzipped, CIFAR's binary files, pictures (train/CLASS/NAME.jpg and "
      "val/CLASS/NAME.jpg, or CLASS/NAME.jpg; .jpeg, .png), record shards (`bonfire data pack`), or text (for BERT "
      "vocab.txt, "
      "train.txt and test.txt; for gpt2 train.txt and test.txt, with vocab.json and merges.txt or without); for gpt2 "
      "also a text file",
      any);
  visit.key("train_file", c.train_file, "folder of the training pictures, where it is not inside data", any);
  visit.key("test_file", c.test_file, "folder of the test pictures, where it is not inside data", any);
  visit.key("test_share", c.test_share,
            "share to test on: of each class, where pictures have no folder for that; of a text file its end",
            {.least = 0, .most = 1, .above = true});
  visit.key("validation_share", c.validation_share,
            "share of the training samples that is held back, of each class alike and chosen by the seed: the best "
            "weights are chosen on it, and the test data is evaluated once, at the end; 0: chosen on the test data",
            {.least = 0, .most = 0.9});
  visit.key("limit", c.limit, "train on the first so many samples only", {.least = 1, .empty = "off"});
  visit.key("image_size", c.image_size,
            "height and width images are brought to; auto: as they are, pictures in folders 224",
            {.least = 1, .most = 65535});
  visit.key("seq_length", c.seq_length, "text and sequences: tokens of one", {.least = 8, .most = 65536});
  visit.key("lower_case", c.lower_case, "text: in lower case and without accents; false where vocab.txt has both", any);
  visit.key("layers", c.layers, "gpt2: its layers; auto: 12", some);
  visit.key("heads", c.heads, "gpt2: heads of its attention; auto: 12", some);
  visit.key("width", c.width, "gpt2: elements of a token, a multiple of heads; auto: 768", some);
  visit.key("context", c.context, "gpt2: tokens of the longest text it can be given, seq_length at least; auto: 1024",
            some);
  visit.key("dropout", c.dropout, "gpt2: share of elements that training drops; auto: 0.1",
            {.least = 0, .most = 1, .below = true});
  visit.key("batch_size", c.batch_size,
            "samples a step, of each rank (of ranks that share a model's layers: of all that do); where place names "
            "several devices: of all together",
            some);
  visit.key("drop_last", c.drop_last,
            "whether samples that do not fill a last batch are left out of an epoch; false: they are trained on, in a "
            "smaller batch",
            any);
  visit.key("num_workers", c.num_workers, "threads that prepare batches; 0: the training thread does", whole);
  visit.key("pin_memory", c.pin_memory,
            "batches for a GPU wait in page-locked memory; not done yet: true is accepted, and a note says that it "
            "changes nothing",
            any);

  visit.section("Images: what training does to them");
  visit.key(
      "crop", c.crop,
      "`resized`: a random part is brought to image_size, and evaluation sees the middle; `padded`: cut at random "
      "after padding; auto: resized for pictures in folders, else none",
      {.choices = {"auto", "none", "resized", "padded"}});
  visit.key("crop_area", c.crop_area, "crop: resized: least and most of the image that is kept",
            {.least = 0, .most = 1, .above = true});
  visit.key("crop_ratio", c.crop_ratio, "crop: resized: least and most ratio of the part's width to its height",
            positive);
  visit.key("crop_padding", c.crop_padding, "crop: padded: black pixels on each side", whole);
  visit.key("center_crop", c.center_crop,
            "crop: resized: share of the image's short side that evaluation sees (resize to image_size / center_crop, "
            "then cut image_size out of the middle)",
            {.least = 0, .most = 1, .above = true});
  visit.key("flip", c.flip, "how often images are mirrored; auto: 0.5 for pictures in folders, else 0", share);
  visit.key("random_erasing", c.random_erasing, "how often a random rectangle is covered with the mean colour", share);
  visit.key("mixup", c.mixup, "mix images and labels in pairs, in shares drawn from Beta(mixup, mixup)",
            {.least = 0, .above = true, .empty = "off"});
  visit.key("mean", c.mean,
            "of pixels / 255, one for each channel, to subtract; auto: measured on all training images, on 100,000 of "
            "more (pictures: on 2,000)",
            any);
  visit.key("deviation", c.deviation,
            "standard deviation of pixels / 255, one for each channel, to divide by; auto: measured", positive);

  visit.section("Optimizer and learning rate");
  visit.key("epochs", c.epochs, "times to go over the training data", some);
  visit.key("steps", c.steps, "batches to train on, in place of epochs", {.least = 1, .empty = "off"});
  visit.key("optimizer", c.optimizer, "how weights are updated",
            {.choices = {"sgd", "momentum", "nesterov", "adagrad", "adam", "adamw", "lars", "lamb"}});
  visit.key("lr", c.lr, "learning rate", positive);
  visit.key("momentum", c.momentum, "of momentum, nesterov and lars", share);
  visit.key("weight_decay", c.weight_decay, "L2 weight decay (adamw, lamb: decoupled)", whole);
  visit.key("weight_decay_of", c.weight_decay_of,
            "what weight_decay is of; `matrices` leaves out what has one axis: biases and the weights of norms",
            {.choices = {"all", "matrices"}});
  visit.key("schedule", c.schedule, "how the rate goes down",
            {.choices = {"constant", "multi_step", "cosine", "polynomial"}});
  visit.key("milestones", c.milestones,
            "multi_step: epochs at which the rate is multiplied by gamma, each later than the one before; without "
            "schedule, they make it multi_step",
            whole);
  visit.key("gamma", c.gamma, "multi_step: what the rate is multiplied by", positive);
  visit.key("warmup_epochs", c.warmup_epochs, "epochs in which the rate rises to lr in a straight line first", whole);
  visit.key("warmup_start_lr", c.warmup_start_lr, "where that line begins", whole);
  visit.key("scale_lr", c.scale_lr, "multiply lr by the number of ranks with samples of their own", any);
  visit.key("clip_grad_norm", c.clip_grad_norm, "gradients longer than this are shortened to it",
            {.least = 0, .above = true, .empty = "off"});
  visit.key("ema_decay", c.ema_decay, "evaluate and save a running mean of the weights, with this decay",
            {.least = 0, .most = 1, .above = true, .below = true, .empty = "off"});
  visit.key("early_stop", c.early_stop, "stop after so many evaluations without a better one",
            {.least = 1, .empty = "off"});

  visit.section("What is kept and shown");
  visit.key("output", c.output, "folder in which each run makes one of its own", any);
  visit.key("resume", c.resume,
            "go on with a run, by its own settings: its folder, a checkpoint's, or `auto` for the newest in output; "
            "what is given besides wins over them",
            any);
  visit.key("resume_anyway", c.resume_anyway,
            "resume: go on even where data, seed or augmentation are not those of the run, and note it in its log",
            any);
  visit.key("log_freq", c.log_freq, "steps between two entries of the log", some);
  visit.key("eval_freq", c.eval_freq,
            "what lies between two evaluations: epochs, `500 steps` or `10 min`; the end is always evaluated", any);
  visit.key(
      "save_freq", c.save_freq,
      "what lies between two checkpoints: epochs, `500 steps` or `10 min`; the last and the best are always saved",
      any);
  visit.key("keep_last", c.keep_last, "checkpoints to keep besides the best", some);

  visit.section("Devices");
  visit.key("place", c.place,
            "cpu, cpu:N, cuda or cuda:N; several (cuda:0,cpu): one process deals each batch out to them; auto: the "
            "first GPU, "
            "of several ranks on a host each its own, else the CPU",
            any);
  visit.key("placement", c.placement,
            "modules of the model that are on other devices than place: {features: cuda:0, classifier: cuda:1}; `*` in "
            "a name stands for any text, and of several names that match the longest counts (docs/model-parallel.md)",
            any);
  visit.key("num_gpus", c.num_gpus, "ranks to start on this machine, one per device; on the CPU they share its cores",
            some);
  visit.key("backend", c.backend, "how ranks talk; auto: by shared memory on one host, by gloo across hosts",
            {.choices = {"auto", "shm", "gloo", "mpi", "nccl"}});
  visit.key("balance", c.balance,
            "what each rank has of a batch; auto: as much as its measured speed allows, equal: as much as any other",
            {.choices = {"equal", "auto"}});
  visit.key("collective_timeout", c.collective_timeout,
            "seconds that ranks wait for one that lives but does not come, before all of them give up",
            {.least = 0, .most = 1e6, .above = true});
  visit.key(
      "check_replicas", c.check_replicas,
      "steps after which the weights and optimizer states of all ranks are compared, bit by bit; also before each "
      "checkpoint; off: never",
      {.least = 1, .empty = "off"});

  const KeyOptions ranks{.least = 1, .most = 65536};
  visit.section("Mesh");
  visit.key("mesh.data", c.mesh.data,
            "ranks that train on samples of their own; auto: as many as the other axes leave. The product of the three "
            "must be the number of ranks",
            ranks);
  visit.key("mesh.pipeline", c.mesh.pipeline, "stages that a model is cut into, a rank each", ranks);
  visit.key("mesh.tensor", c.mesh.tensor, "ranks that share the work of each layer", ranks);
  visit.key("mesh.order", c.mesh.order,
            "axes, those first whose ranks are numbered one after the other and so stand nearest to each other",
            {.choices = {"data", "pipeline", "tensor"}});

  visit.key("tensor.split", c.tensor_split,
            "what ranks along mesh.tensor share out: paths of variables (`*` stands for any text, the longest match "
            "counts) and the axis that is split; empty: as the model's own plan says (`bonfire inspect shards`)",
            any);

  visit.section("Pipeline");
  visit.key("pipeline.micro_batches", c.pipeline.micro_batches,
            "parts of a batch that the stages work on at the same time; auto: four for each rank",
            {.least = 1, .most = 65536});
  visit.key("pipeline.schedule", c.pipeline.schedule,
            "in which order: all forward passes first, each backward pass as soon as it can be, that with the "
            "gradients of weights where a stage would wait, or with several stages for each rank",
            {.choices = {"gpipe", "1f1b", "zero_bubble", "interleaved"}});
  visit.key("pipeline.chunks", c.pipeline.chunks,
            "stages of each rank; auto: 2 where interleaved, which alone has more "
            "than one",
            {.least = 1, .most = 1024});
  visit.key("pipeline.cut", c.pipeline.cut,
            "the first module of each further stage, in the order in which a step runs through them: [features.10, "
            "classifier]; auto: where the slowest stage takes least time (`bonfire inspect schedule`)",
            any);

  auto& s = c.strategy;
  visit.section("Memory");
  visit.key(
      "memory_budget", s.memory_budget,
      "of each device, for parameters, gradients, optimizer states, batches and temporaries: as 6GB, or a share of "
      "what it has, as 0.8; what would be more is computed again in the backward pass instead of kept; auto: most "
      "of what it has",
      any);

  visit.section("Strategy");
  visit.key("strategy.num_threads", s.num_threads, "independent ops in flight on a device", some);
  visit.key("strategy.cpu_threads", s.cpu_threads, "threads inside CPU kernels; auto: cores / processes on the host",
            some);
  visit.key("strategy.nccl_comm_num", s.nccl_comm_num,
            "communicators used in turn for collectives; 2 is advised across hosts", {.least = 1, .most = 64});
  visit.key("strategy.fuse_all_reduce_ops", s.fuse_all_reduce_ops, "merge gradient all-reduces", any);
  visit.key("strategy.fuse_parameter_memory_size", s.fuse_parameter_memory_size,
            "MB per merged all-reduce; auto: a tenth of all gradients, less towards the end; "
            "FLAGS_fuse_parameter_memory_size in the environment wins over a file",
            positive);
  visit.key(
      "strategy.fuse_parameter_groups_size", s.fuse_parameter_groups_size,
      "layers per merged all-reduce at most; FLAGS_fuse_parameter_groups_size in the environment wins over a file",
      some);
  visit.key("strategy.use_hierarchical_allreduce", s.use_hierarchical_allreduce,
            "within the host, then across hosts, then within", any);
  visit.key("strategy.num_iteration_per_drop_scope", s.num_iteration_per_drop_scope,
            "steps after which unused plans and scratch memory are released", some);
  visit.key("strategy.fetch_frequency", s.fetch_frequency, "steps between two reads of values by the host", some);
  visit.key("strategy.fuse_bn_act_ops", s.fuse_bn_act_ops, "batch norm + activation as one kernel", any);
  visit.key("strategy.fuse_elewise_add_act_ops", s.fuse_elewise_add_act_ops,
            "add + activation as one kernel, also after a convolution or product", any);
  visit.key("strategy.fast_math", s.fast_math, "kernels with larger rounding errors may be chosen", any);
  visit.key("strategy.use_local_sgd", s.use_local_sgd, "average weights now and then instead of gradients at each step",
            any);
  visit.key("strategy.local_sgd_is_warm_steps", s.local_sgd_is_warm_steps,
            "epochs of synchronous training first; auto: until the rate first drops", whole);
  visit.key("strategy.local_sgd_steps", s.local_sgd_steps, "local steps between two averages", some);
  visit.key("strategy.use_amp", s.use_amp, "mixed precision", any);
  visit.key("strategy.amp_dtype", s.amp_dtype, "what mixed precision computes in", {.choices = {"bf16", "f16"}});
  visit.key("strategy.loss_scaling", s.loss_scaling, "factor on the loss in f16",
            {.least = 0, .above = true, .empty = "dynamic"});
  visit.key("strategy.use_recompute", s.use_recompute,
            "compute segments again in the backward pass instead of keeping them", any);
  visit.key("strategy.recompute_segments", s.recompute_segments,
            "modules to mark, as [layer1, encoder.layer.*]; auto: as memory_budget asks for, which is auto then", any);
  visit.key("strategy.sync_batch_norm", s.sync_batch_norm, "batch statistics over all processes", any);
  visit.key("strategy.accumulate_steps", s.accumulate_steps, "batches whose gradients are added up before an update",
            some);
  visit.key("strategy.sharding", s.sharding,
            "what ranks share out instead of having copies: optimizer states; gradients too; parameters too",
            {.choices = {"off", "optimizer", "gradients", "parameters"}});
}

}  // namespace bonfire::train
