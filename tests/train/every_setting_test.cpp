// Every setting has an effect that can be seen, or is refused: for each key there is a row below with two runs that
// differ in nothing but its value, and in what they do.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <set>
#include <thread>

#include "bonfire/base/error.h"
#include "bonfire/comm/local/local_group.h"
#include "bonfire/graph/graph.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/runtime/plan_cache.h"
#include "bonfire/train/trainer.h"
#include "tests/support/image_files.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/digits.h"

namespace bonfire::train::every_setting_test {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::ScratchFolder;
using Words = std::vector<std::string>;

// What can be seen of a run: all that reporters hear, which files are left, and the graphs that were compiled.
class Seen final : public Reporter {
 public:
  explicit Seen(std::string& text) : text_(text) {}
  void begin(const RunBegins& run) override {
    folder_ = run.folder;
    text_ += fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {}\n", run.model, run.data, run.place,
                         run.train_samples, run.test_samples, run.epochs, run.steps_per_epoch, run.total_steps,
                         run.batch_size, run.ranks, run.first_step, run.parameters, run.class_names.size(),
                         run.folder.parent_path().filename().string());
  }
  void step(const StepReport& step) override {
    text_ += fmt::format("step {} epoch {} loss {} lr {}\n", step.step, step.epoch, step.loss, step.lr);
  }
  void evaluated(const EvaluationReport& report) override {
    text_ += fmt::format("evaluated at {}: {} {}\n", report.step, report.loss, report.headline());
  }
  void note(const std::string& note) override { text_ += note + "\n"; }
  void end(const RunEnds& run) override {
    text_ += fmt::format("best {}, last {}\n", run.best_score, run.last_score);
    std::set<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_ / "checkpoints"))
      names.insert(entry.path().filename().string());
    for (const std::string& name : names) text_ += name + "\n";
    for (const auto& plan : runtime::cached_plans()) names.insert(print_graph(*plan->graph));
    for (const std::string& graph : names) text_ += graph;
  }

 private:
  std::string& text_;
  fs::path folder_;
};

// Without what is different in every run: the names of scratch folders, and the numbers of channels between ranks.
std::string without(std::string text, const std::string& folder) {
  for (const std::string& part : {folder, fs::path(folder).filename().string()})
    for (size_t at; (at = text.find(part)) != std::string::npos;) text.erase(at, part.size());
  return std::regex_replace(text, std::regex("channel=[0-9]+"), "channel");
}

std::string tracks_in(const fs::path& trace) {
  std::ifstream stream(trace);
  std::string text{std::istreambuf_iterator<char>(stream), {}}, found;
  for (const char* track : {"worker 1", "worker 2"}) found += text.find(track) == std::string::npos ? "" : track;
  return found;
}

std::string run_one(const Words& settings, const ScratchFolder& folder) {
  std::string text;
  try {
    Trainer trainer(default_config(settings));
    trainer.add(std::make_unique<Seen>(text));
    trainer.trace_to(folder / "trace.json");
    trainer.run();
  } catch (const Error& error) {
    return fmt::format("refused: {}", error.what());
  }
  return text + tracks_in(folder / "trace.json");
}

std::string run_ranks(const Words& settings, int ranks) {
  auto groups = comm::local_groups(ranks, {.timeout = std::chrono::seconds(60)});
  std::vector<std::string> texts(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      std::string& text = texts[static_cast<size_t>(rank)];
      Words own = settings;
      own.push_back("place=cpu:" + std::to_string(rank));
      fleet::join(groups[static_cast<size_t>(rank)]);
      try {
        Trainer trainer(default_config(own));
        trainer.add(std::make_unique<Seen>(text));
        trainer.run();
        fleet::leave();
      } catch (const Error& error) {
        text = fmt::format("refused: {}", error.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
  return texts[0];
}

// What rows train on, made once.
class Sources {
 public:
  Sources() {
    put_digits(folder_ / "digits");
    for (const char* name : {"split/train/", "split/val/", "whole/"})
      for (const char* label : {"dark", "light"})
        for (int i = 0; i < (name[0] == 'w' ? 10 : 8); ++i)
          put_picture(folder_ / (std::string(name) + label), i, label[0] == 'l');
    fs::create_directory(folder_ / "text");
    folder_.put("text/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nred\nfire\nRed\nsky\n");
    std::string line;
    for (int i = 0; i < 40; ++i) line += i % 3 == 0 ? "red fire " : "Red sky ";
    folder_.put("text/train.txt", line + "\n");
    folder_.put("text/test.txt", line + "\n");
    const Words settings{data("digits"), "output=" + (folder_ / "runs").string(), "model=mlp", "limit=96", "steps=2",
                         "place=cpu"};
    Trainer(default_config(settings)).run();
  }
  std::string data(const char* name) const { return "data=" + path(name); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

 private:
  static void put_picture(const fs::path& folder, int number, bool bright) {
    fs::create_directories(folder);
    int height = 30 + number, width = 40 - number;
    std::vector<uint8_t> pixels = testing::test_picture(height, width);
    for (uint8_t& value : pixels) value = static_cast<uint8_t>(value / 2 + (bright ? 127 : 0));
    std::ofstream(folder / (std::to_string(number) + ".png"), std::ios::binary)
        << testing::png_file(pixels, height, width);
  }

  ScratchFolder folder_;
};

const Sources& sources() {
  static const Sources instance;
  return instance;
}

enum class Group : uint8_t { data, images, text, optimizer, kept, devices, compiled, ranks };

struct Row {
  const char* key;
  Group group;
  Words both;            // settings of both runs
  std::string one, two;  // of each: the key with two values; "": without it
};

// "@NAME" stands for the path of a source.
const std::vector<Row>& rows() {
  using G = Group;
  const Words pictures{"data=@split", "model=lenet", "image_size=28", "batch_size=8"},
      text{"data=@text", "model=bert_mini", "batch_size=2", "steps=1", "optimizer=sgd"},
      gpt2{"data=@text/train.txt", "model=gpt2", "seq_length=8", "layers=1", "heads=2",      "width=8",
           "context=16",           "dropout=0",  "batch_size=2", "steps=1",  "optimizer=sgd"},
      bn{"model=resnet18_small", "image_size=16", "batch_size=2", "steps=1"}, local{"strategy.use_local_sgd=true"};
  Words short_text = text;
  short_text.emplace_back("seq_length=8");
  static const std::vector<Row> all = {
      {"model", G::data, {}, "model=mlp", "model=lenet"},
      {"num_classes", G::data, {}, "num_classes=auto", "num_classes=12"},
      {"init_from", G::data, {}, "", "init_from=@runs/1"},
      {"strict", G::data, {"init_from=@runs/1", "num_classes=12"}, "strict=true", "strict=false"},
      {"seed", G::data, {}, "seed=1", "seed=2"},
      {"data", G::data, {"model=lenet", "image_size=28", "batch_size=8"}, "data=@digits", "data=@split"},
      {"limit", G::data, {}, "limit=64", "limit=off"},
      {"validation_share", G::data, {}, "validation_share=0", "validation_share=0.2"},
      {"batch_size", G::data, {}, "batch_size=32", "batch_size=16"},
      {"drop_last", G::data, {"limit=70"}, "drop_last=true", "drop_last=false"},
      {"num_workers", G::data, {}, "num_workers=1", "num_workers=2"},
      {"pin_memory", G::data, {}, "pin_memory=false", "pin_memory=true"},  // a note that it changes nothing
      {"train_file", G::images, pictures, "", "train_file=@whole test_file=@split/val"},
      {"test_file", G::images, pictures, "train_file=@split/train test_file=@split/val",
       "train_file=@split/train test_file=@whole"},
      {"test_share",
       G::images,
       {"data=@whole", "model=lenet", "image_size=28", "batch_size=4"},
       "test_share=0.1",
       "test_share=0.5"},
      {"image_size", G::images, {"model=lenet"}, "image_size=28", "image_size=30"},
      {"crop", G::images, {}, "crop=none", "crop=padded"},
      {"crop_area", G::images, {"crop=resized"}, "crop_area=[0.5, 1]", "crop_area=[0.1, 0.2]"},
      {"crop_ratio", G::images, {"crop=resized"}, "crop_ratio=[1, 1]", "crop_ratio=[0.5, 2]"},
      {"crop_padding", G::images, {"crop=padded"}, "crop_padding=2", "crop_padding=6"},
      {"center_crop", G::images, {"crop=resized"}, "center_crop=0.875", "center_crop=0.5"},
      {"flip", G::images, {}, "flip=0", "flip=1"},
      {"random_erasing", G::images, {}, "random_erasing=0", "random_erasing=1"},
      {"mixup", G::images, {}, "mixup=off", "mixup=0.4"},
      {"mean", G::images, {}, "mean=auto", "mean=[0.5]"},
      {"deviation", G::images, {}, "deviation=auto", "deviation=[0.5]"},
      {"seq_length", G::text, text, "seq_length=8", "seq_length=12"},
      {"lower_case", G::text, short_text, "lower_case=true", "lower_case=false"},
      {"layers", G::text, gpt2, "layers=1", "layers=2"},
      {"heads", G::text, gpt2, "heads=2", "heads=1"},
      {"width", G::text, gpt2, "width=8", "width=16"},
      {"context", G::text, gpt2, "context=16", "context=32"},
      {"dropout", G::text, gpt2, "dropout=0", "dropout=0.5"},
      {"epochs", G::optimizer, {}, "epochs=1", "epochs=2"},
      {"steps", G::optimizer, {}, "steps=off", "steps=2"},
      {"optimizer", G::optimizer, {}, "optimizer=sgd", "optimizer=adam"},
      {"lr", G::optimizer, {}, "lr=0.01", "lr=0.02"},
      {"momentum", G::optimizer, {}, "momentum=0.9", "momentum=0.5"},
      {"weight_decay", G::optimizer, {}, "weight_decay=0", "weight_decay=0.1"},
      {"weight_decay_of", G::optimizer, {"weight_decay=0.5"}, "weight_decay_of=all", "weight_decay_of=matrices"},
      {"schedule", G::optimizer, {}, "schedule=constant", "schedule=cosine"},
      {"milestones", G::optimizer, {"epochs=2"}, "", "milestones=[1]"},
      {"gamma", G::optimizer, {"epochs=2", "milestones=[1]"}, "gamma=0.1", "gamma=0.5"},
      {"warmup_epochs", G::optimizer, {}, "warmup_epochs=0", "warmup_epochs=1"},
      {"warmup_start_lr", G::optimizer, {"warmup_epochs=1"}, "warmup_start_lr=0", "warmup_start_lr=0.001"},
      {"clip_grad_norm", G::optimizer, {}, "clip_grad_norm=off", "clip_grad_norm=0.01"},
      {"ema_decay", G::optimizer, {}, "ema_decay=off", "ema_decay=0.9"},
      {"early_stop", G::optimizer, {"optimizer=sgd", "lr=1e-20", "epochs=4"}, "early_stop=off", "early_stop=1"},
      {"strategy.accumulate_steps", G::optimizer, {}, "strategy.accumulate_steps=1", "strategy.accumulate_steps=3"},
      {"output", G::kept, {}, "output=@out/one", "output=@out/two"},
      {"resume", G::kept, {"steps=4"}, "", "resume=@runs/1"},
      {"resume_anyway", G::kept, {"steps=4", "seed=7", "resume=@runs/1"}, "resume_anyway=true", "resume_anyway=false"},
      {"log_freq", G::kept, {}, "log_freq=1", "log_freq=3"},
      {"eval_freq", G::kept, {"epochs=2"}, "eval_freq=1", "eval_freq=2 steps"},
      {"save_freq", G::kept, {"epochs=4", "lr=1e-20"}, "save_freq=1", "save_freq=2"},
      {"keep_last", G::kept, {"epochs=4"}, "keep_last=1", "keep_last=4"},
      {"place", G::devices, {}, "place=cpu:0", "place=cpu:1"},
      {"placement", G::devices, {}, "", "placement.fc*=cpu:1"},
      {"num_gpus", G::devices, {}, "num_gpus=1", "num_gpus=2"},
      {"backend", G::devices, {}, "backend=auto", "backend=nccl"},
      {"strategy.num_threads", G::devices, {}, "strategy.num_threads=1", "strategy.num_threads=100000"},
      {"strategy.cpu_threads", G::devices, {}, "strategy.cpu_threads=auto", "strategy.cpu_threads=63"},
      {"strategy.fuse_bn_act_ops", G::compiled, bn, "strategy.fuse_bn_act_ops=true", "strategy.fuse_bn_act_ops=false"},
      {"strategy.fuse_elewise_add_act_ops",
       G::compiled,
       {},
       "strategy.fuse_elewise_add_act_ops=true",
       "strategy.fuse_elewise_add_act_ops=false"},
      {"strategy.use_amp", G::compiled, {}, "strategy.use_amp=false", "strategy.use_amp=true"},
      {"strategy.amp_dtype",
       G::compiled,
       {"strategy.use_amp=true"},
       "strategy.amp_dtype=bf16",
       "strategy.amp_dtype=f16"},
      {"strategy.loss_scaling", G::compiled, {}, "", "strategy.loss_scaling=8"},
      // By itself it is a budget of most of the memory, which stages do not have.
      {"strategy.use_recompute",
       G::ranks,
       {"mesh.pipeline=2"},
       "strategy.use_recompute=false",
       "strategy.use_recompute=true"},
      {"strategy.recompute_segments", G::compiled, {}, "", "strategy.recompute_segments=[fc1]"},
      {"memory_budget", G::compiled, {}, "memory_budget=off", "memory_budget=1KB"},
      {"scale_lr", G::ranks, {}, "scale_lr=false", "scale_lr=true"},
      {"mesh.data", G::ranks, {}, "mesh.data=2", "mesh.data=3"},  // there are two
      {"mesh.pipeline", G::ranks, {}, "mesh.pipeline=1", "mesh.pipeline=2"},
      {"mesh.tensor", G::ranks, {}, "mesh.tensor=1", "mesh.tensor=2"},
      {"tensor.split", G::ranks, {"mesh.tensor=2"}, "", "tensor.split.fc1.rows=0"},  // there is no such parameter
      {"balance", G::ranks, {"batch_size=1", "limit=4"}, "balance=equal", "balance=auto"},
      {"strategy.nccl_comm_num",
       G::ranks,
       {"strategy.fuse_parameter_groups_size=1"},
       "strategy.nccl_comm_num=1",
       "strategy.nccl_comm_num=2"},
      {"strategy.fuse_all_reduce_ops",
       G::ranks,
       {},
       "strategy.fuse_all_reduce_ops=true",
       "strategy.fuse_all_reduce_ops=false"},
      {"strategy.fuse_parameter_memory_size",
       G::ranks,
       {},
       "strategy.fuse_parameter_memory_size=auto",
       "strategy.fuse_parameter_memory_size=100"},
      {"strategy.fuse_parameter_groups_size",
       G::ranks,
       {"strategy.fuse_parameter_memory_size=100"},
       "strategy.fuse_parameter_groups_size=50",
       "strategy.fuse_parameter_groups_size=1"},
      {"strategy.use_local_sgd", G::ranks, {}, "strategy.use_local_sgd=false", "strategy.use_local_sgd=true"},
      {"strategy.local_sgd_steps", G::ranks, local, "strategy.local_sgd_steps=1", "strategy.local_sgd_steps=3"},
      {"strategy.local_sgd_is_warm_steps", G::ranks, local, "strategy.local_sgd_is_warm_steps=0",
       "strategy.local_sgd_is_warm_steps=1"},
      {"strategy.sharding", G::ranks, {}, "strategy.sharding=off", "strategy.sharding=optimizer"},
      {"strategy.sync_batch_norm", G::ranks, bn, "strategy.sync_batch_norm=false", "strategy.sync_batch_norm=true"},
  };
  return all;
}

// Keys whose effect takes more than a run in this process to see, and the test that sees it.
struct Elsewhere {
  const char *key, *file, *test;
};
constexpr Elsewhere kElsewhere[] = {
    {"strategy.num_threads", "runtime/devices_test.cpp", "IndependentOpsOfOneDeviceRunTogether"},
    {"mesh.order", "graph/mesh_test.cpp", "RanksAlongTensorAreNeighbours"},
    {"pipeline.micro_batches", "launch/pipeline_test.cpp", "RefusesWhatCannotBe"},
    {"pipeline.schedule", "launch/pipeline_test.cpp", "TrainsInTwoStagesAsOneProcessDoesInEverySchedule"},
    {"pipeline.chunks", "launch/pipeline_test.cpp", "TrainsWithTwoStagesOnEachRank"},
    {"pipeline.cut", "launch/pipeline_test.cpp", "RefusesWhatCannotBe"},
    {"backend", "launch/equality_test.cpp", "TrainingIsThatOfOneRankOnEveryBackend"},
    {"check_replicas", "parallel/replica_check_test.cpp", "AFlippedBitIsNamedWithItsRank"},
    {"collective_timeout", "launch/frozen_test.cpp", "AreNamedByAllWithTheirStepAndCollective"},
    {"strategy.use_hierarchical_allreduce", "launch/hierarchy_test.cpp", "OnlyTheLeastPossibleLeavesAHost"},
    {"strategy.num_iteration_per_drop_scope", "train/trainer_test.cpp", "ReleasesMemoryEverySoManySubmissions"},
    {"strategy.fast_math", "ops/exactness_test.cpp", "IsPartOfWhatAPlanIsMadeFor"},
    {"strategy.fetch_frequency", "train/trainer_test.cpp", "FetchesTheResultsOfEverySoManySteps"},
};

// "a=1 b=[2, 3]": two settings.
Words words_of(const std::string& settings) {
  Words words;
  bool inside = false, gap = true;
  for (char c : settings) {
    inside = c == '[' || (inside && c != ']');
    if (c == ' ' && !inside) {
      gap = true;
      continue;
    }
    if (gap) words.emplace_back();
    gap = false;
    words.back() += c;
  }
  return words;
}

std::string seen(const Row& row, const std::string& values) {
  ScratchFolder folder;
  Words settings{"data=@digits", "model=mlp",     "limit=96",       "batch_size=32", "epochs=1",
                 "log_freq=1",   "num_workers=1", "output=@output", "lr=0.01"};
  settings.emplace_back(row.group == Group::ranks ? "batch_size=8" : "place=cpu:0");
  settings.insert(settings.end(), row.both.begin(), row.both.end());
  for (const std::string& one : words_of(values)) settings.push_back(one);
  fs::create_directory(folder / "out");
  for (std::string& setting : settings) {
    size_t at = setting.find('@');
    if (at == std::string::npos) continue;
    std::string name = setting.substr(at + 1);
    bool own = name.starts_with("out");
    setting = setting.substr(0, at) + (own ? (folder / name).string() : sources().path(name));
  }
  runtime::clear_plan_cache();
  if (std::string_view(row.key).starts_with("resume")) {  // a run that is gone on with is changed
    fs::copy(sources().path("runs/1"), folder / "before", fs::copy_options::recursive);
    if (values != "") std::erase_if(settings, [](const std::string& one) { return one.starts_with("output="); });
    for (std::string& setting : settings)
      if (setting.starts_with("resume=")) setting = "resume=" + (folder / "before").string();
  }
  return without(row.group == Group::ranks ? run_ranks(settings, 2) : run_one(settings, folder),
                 folder.path().string());
}

class EverySetting : public ::testing::TestWithParam<std::pair<const char*, Group>> {};

TEST_P(EverySetting, HasAnEffectOrIsRefused) {
  for (const Row& row : rows()) {
    if (row.group != GetParam().second) continue;
    std::string one = seen(row, row.one), again = seen(row, row.one), two = seen(row, row.two);
    EXPECT_EQ(one.find("refused: "), row.key == std::string_view("strict") ? 0U : std::string::npos)
        << row.key << ": " << one;
    EXPECT_EQ(one, again) << row.key << " is not what makes the difference";
    EXPECT_NE(one, two) << row.key << " has no effect: " << two.substr(0, 2000);
  }
}

INSTANTIATE_TEST_SUITE_P(Of, EverySetting,
                         ::testing::Values(std::pair("Data", Group::data), std::pair("Images", Group::images),
                                           std::pair("Text", Group::text), std::pair("Optimizer", Group::optimizer),
                                           std::pair("WhatIsKept", Group::kept), std::pair("Devices", Group::devices),
                                           std::pair("Compiled", Group::compiled), std::pair("Ranks", Group::ranks)),
                         [](const auto& group) { return group.param.first; });

TEST(EverySettingTable, HasEveryKey) {
  std::set<std::string> covered;
  for (const Row& row : rows()) covered.insert(row.key);
  for (const Elsewhere& one : kElsewhere) covered.insert(one.key);
  std::set<std::string> keys;
  for (const auto& [key, values] : config_keys()) keys.insert(key);
  EXPECT_EQ(covered, keys);
}

TEST(EverySettingTable, TestsThatSeeAnEffectElsewhereAreThere) {
  for (const auto& [key, file, test] : kElsewhere) {
    std::ifstream stream(fmt::format("{}/tests/{}", BONFIRE_SOURCE_DIR, file));
    std::string text{std::istreambuf_iterator<char>(stream), {}};
    EXPECT_TRUE(std::regex_search(text, std::regex(fmt::format("TEST[_FP]*\\([^)]*{}", test)))) << key << ": " << file;
  }
}

// What a user gives that would be without effect beside the rest is refused, with the key that it needs.
TEST(EverySettingTable, WhatNeedsAnotherSettingIsRefusedWithoutIt) {
  const std::pair<const char*, const char*> needs[] = {
      {"strict=false", "init_from"},
      {"resume_anyway=true", "resume"},
      {"seq_length=32", "mlp reads images"},
      {"lower_case=false", "mlp reads images"},
      {"width=64", "width is for gpt2"},
      {"weight_decay_of=matrices", "weight_decay"},
      {"crop_padding=2", "crop: padded"},
      {"crop_area=[0.5, 1]", "crop: resized"},
      {"crop_ratio=[1, 1]", "crop: resized"},
      {"center_crop=0.5", "crop: resized"},
      {"test_share=0.5", "a test part of its own"},
      {"optimizer=sgd momentum=0.5", "momentum"},
      {"milestones=[1] schedule=cosine", "schedule: multi_step"},
      {"gamma=0.5", "schedule: multi_step"},
      {"warmup_start_lr=0.1", "warmup_epochs"},
      {"strategy.amp_dtype=f16", "use_amp"},
      {"strategy.loss_scaling=8", "use_amp"},
      {"strategy.use_amp=true strategy.loss_scaling=8", "amp_dtype f16"},
      {"strategy.recompute_segments=fc", "use_recompute"},
      {"pipeline.micro_batches=4", "mesh.pipeline above 1"},
      {"pipeline.schedule=gpipe", "mesh.pipeline above 1"},
      {"pipeline.chunks=2", "pipeline.schedule: interleaved"},
      {"pipeline.cut=[fc]", "mesh.pipeline above 1"},
      {"strategy.local_sgd_steps=8", "use_local_sgd"},
      {"strategy.local_sgd_is_warm_steps=1", "use_local_sgd"},
      {"strategy.fuse_all_reduce_ops=false strategy.fuse_parameter_memory_size=1", "fuse_all_reduce_ops"},
      {"strategy.fuse_all_reduce_ops=false strategy.fuse_parameter_groups_size=1", "fuse_all_reduce_ops"},
  };
  for (const auto& [settings, needed] : needs) {
    Row row{"", Group::data, {}, "", ""};
    std::string text = seen(row, settings);
    EXPECT_EQ(text.find("refused: "), 0U) << settings << ": " << text;
    EXPECT_NE(text.find(needed), std::string::npos) << settings << ": " << text;
  }
}

}  // namespace
}  // namespace bonfire::train::every_setting_test
