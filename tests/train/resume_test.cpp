// A run that is gone on with stays the experiment that it was.

#include "bonfire/train/checkpoint/resume.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "bonfire/base/error.h"
#include "bonfire/train/checkpoint/checkpoint.h"
#include "bonfire/train/trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/course.h"
#include "tests/train/digits.h"

namespace bonfire::train::resume_test {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::ScratchFolder;
using Words = std::vector<std::string>;

// Settings that are not the defaults, so that it shows where a run is not its own any more. 15 steps an epoch.
Words settings(const ScratchFolder& folder, const Words& more = {}) {
  Words all{data_of_digits(folder),
            "output=" + (folder / "runs").string(),
            "place=cpu",
            "batch_size=32",
            "epochs=1",
            "log_freq=5",
            "model=lenet",
            "optimizer=adam",
            "lr=0.002",
            "schedule=cosine",
            "warmup_epochs=0.5"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Course run(const Words& words, int64_t stop_at = -1) {
  Course course;
  Trainer trainer(default_config(words));
  trainer.add(std::make_unique<Witness>(course, stop_at));
  trainer.add(metrics_log());
  trainer.add(report_page());
  course.end = trainer.run();
  return course;
}

// Every file of a folder with what is in it.
std::map<std::string, std::string> files_in(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream stream(entry.path(), std::ios::binary);
    files[entry.path().lexically_relative(folder)] = {std::istreambuf_iterator<char>(stream), {}};
  }
  return files;
}

std::string all_notes(const Course& course) {
  std::string text;
  for (const std::string& note : course.notes) text += note + "\n";
  return text;
}

TEST(Resume, GoesOnByTheRunsOwnSettings) {
  ScratchFolder folder, other;
  const Course whole = run(settings(other, {"epochs=2"}));
  const Course first = run(settings(folder, {"epochs=2"}), 5);
  ASSERT_TRUE(first.end.interrupted);
  const std::string before = folder.get("runs/1/config.yaml");
  const Course second = run({"resume=" + first.begin.folder.string()});
  EXPECT_EQ(all_notes(second), "");
  EXPECT_EQ(second.end.best_score, whole.end.best_score);
  EXPECT_EQ(second.steps.back().loss, whole.steps.back().loss);
  EXPECT_EQ(folder.get("runs/1/config.yaml"), before);
  EXPECT_EQ(before.find("resume"), std::string::npos) << before;
}

TEST(Resume, SaysWhatIsChangedAndKeepsTheRest) {
  ScratchFolder folder;
  const Course first = run(settings(folder));
  const Course second = run({"resume=" + first.begin.folder.string(), "epochs=3", "lr=0.001"});
  EXPECT_EQ(all_notes(second),
            first.begin.folder.string() + " goes on with other settings: epochs 1 → 3, lr 0.002 → 0.001\n");
  EXPECT_EQ(second.begin.total_steps, 45);
  EXPECT_EQ(second.steps.back().step, 45);
  const Config config = load_config(first.begin.folder / "config.yaml");
  EXPECT_EQ(config.schedule, "cosine");
  EXPECT_EQ(config.batch_size, 32);
  EXPECT_EQ(config.epochs, 3);
  std::istringstream log(folder.get("runs/1/metrics.jsonl"));
  Words changes;
  for (std::string line; std::getline(log, line);)
    for (const auto& change : nlohmann::json::parse(line).value("changes", nlohmann::json::array()))
      changes.push_back(change);
  EXPECT_EQ(changes, (Words{"epochs 1 → 3", "lr 0.002 → 0.001"}));
}

TEST(Resume, EpochsThatAreAskedForCountMoreThanTheRunsSteps) {
  ScratchFolder folder;
  const Course first = run(settings(folder, {"steps=4"}));
  EXPECT_EQ(run({"resume=" + first.begin.folder.string(), "epochs=1"}).steps.back().step, 15);
}

// In the seen case, a default of the program took the place of the run's: momentum is adam's business no more.
TEST(Resume, RulesAreThoseOfAllSettingsTogether) {
  ScratchFolder folder;
  const Course first = run(settings(folder, {"schedule=multi_step", "milestones=[1]", "steps=2"}));
  const std::string resume = "resume=" + first.begin.folder.string();
  EXPECT_EQ(run({resume, "gamma=0.5", "steps=3"}).steps.back().step, 3);
  EXPECT_ERROR(run({resume, "schedule=cosine", "steps=4"}), ConfigError,
               "milestones has no effect without schedule: multi_step; add schedule: multi_step, or leave milestones "
               "out (with the settings of " +
                   first.begin.folder.string());
}

TEST(Resume, ACompleteRunSaysSoAndChangesNothing) {
  ScratchFolder folder;
  const Course first = run(settings(folder));
  const auto before = files_in(first.begin.folder);
  const std::string resume = "resume=" + first.begin.folder.string();
  for (const Words& more : {Words{resume}, Words{resume, "lr=0.5", "batch_size=7"}, Words{resume, "steps=3"}}) {
    const Course again = run(more);
    EXPECT_TRUE(again.end.was_complete);
    EXPECT_EQ(again.end.best_score, first.end.best_score);
    EXPECT_EQ(again.told, 0);
    EXPECT_NE(all_notes(again).find("is complete: 15 steps, 1 epochs; nothing was done or changed"), std::string::npos)
        << all_notes(again);
    EXPECT_EQ(files_in(first.begin.folder), before);
  }
}

TEST(Resume, ARunThatStoppedEarlyIsComplete) {
  ScratchFolder folder;
  const Words still = settings(folder, {"optimizer=sgd", "lr=1e-20", "epochs=6", "early_stop=2"});
  const Course first = run(still);
  ASSERT_TRUE(first.end.stopped_early);
  const std::string resume = "resume=" + first.begin.folder.string();
  EXPECT_NE(all_notes(run({resume})).find("stopped early; nothing was done"), std::string::npos);
  EXPECT_EQ(run({resume, "early_stop=3"}).steps.back().step, 60);
}

TEST(Resume, RefusesWhatWouldBeAnotherExperiment) {
  ScratchFolder folder;
  const Course first = run(settings(folder));
  const std::string run_folder = first.begin.folder.string(), resume = "resume=" + run_folder;
  const auto before = files_in(run_folder);
  const std::pair<const char*, const char*> keys[] = {{"seed=7", "seed was 1 and is 7"},
                                                      {"model=mlp", "model was \"lenet\" and is \"mlp\""},
                                                      {"num_classes=12", "num_classes was auto and is 12"},
                                                      {"optimizer=sgd", "optimizer was \"adam\" and is \"sgd\""},
                                                      {"limit=100", "limit was off and is 100"},
                                                      {"flip=0.5", "flip was auto and is 0.5"},
                                                      {"mixup=0.4", "mixup was off and is 0.4"},
                                                      {"crop=padded", "crop was \"auto\" and is \"padded\""},
                                                      {"data=generated", "the training data was 480 samples"}};
  for (const auto& [setting, text] : keys) {
    EXPECT_ERROR(run({resume, setting, "epochs=2"}), ConfigError, text);
    EXPECT_ERROR(run({resume, setting, "epochs=2"}), ConfigError, "init_from=" + run_folder + " without resume");
    // By auto the same, and where there is nothing left to train.
    EXPECT_ERROR(run({"resume=auto", "output=" + (folder / "runs").string(), setting}), ConfigError, text);
    EXPECT_EQ(files_in(run_folder), before) << setting;
  }
}

TEST(Resume, AnotherOutputOrOtherWeightsBesideItAreRefused) {
  ScratchFolder folder;
  const Course first = run(settings(folder));
  const std::string resume = "resume=" + first.begin.folder.string();
  EXPECT_ERROR(run({resume, "epochs=2", "output=" + (folder / "elsewhere").string()}), ConfigError,
               "leave output out, or begin another run there with init_from=" + first.begin.folder.string());
  EXPECT_ERROR(run({resume, "epochs=2", "init_from=" + first.end.weights.string()}), ConfigError,
               "leave one of them out");
  EXPECT_FALSE(fs::exists(folder / "elsewhere"));
}

TEST(Resume, ARunThatBeganFromWeightsNeedsThemNoMore) {
  ScratchFolder folder;
  const Course first = run(settings(folder));
  const fs::path weights = folder / "copy.safetensors";
  fs::copy_file(first.end.weights, weights);
  const Words fine = settings(
      folder, {"init_from=" + weights.string(), "epochs=2", "resume=auto", "output=" + (folder / "tuned").string()});
  ASSERT_TRUE(run(fine, 5).end.interrupted);
  fs::remove(weights);
  EXPECT_EQ(run(fine).steps.back().step, 30);
}

TEST(Resume, AnywayGoesOnAndTheLogSaysSo) {
  ScratchFolder folder;
  const Course first = run(settings(folder));
  const std::string resume = "resume=" + first.begin.folder.string();
  const Course second = run({resume, "seed=7", "epochs=2", "resume_anyway=true"});
  EXPECT_NE(all_notes(second).find("goes on as another experiment (resume_anyway): seed was 1 and is 7"),
            std::string::npos)
      << all_notes(second);
  EXPECT_NE(folder.get("runs/1/metrics.jsonl").find(R"("other_than_was":["seed was 1 and is 7"])"), std::string::npos);
  EXPECT_EQ(folder.get("runs/1/config.yaml").find("resume"), std::string::npos);
  EXPECT_EQ(run({resume, "epochs=3"}).steps.back().step, 45);  // what was accepted is the run's now
}

// The other images are noise to a model of digits: no score on them is as good.
TEST(Resume, BestScoresCountOnTheSameTestDataOnly) {
  ScratchFolder folder;
  const Course first = run(settings(folder, {"epochs=4", "lr=0.005"}));
  ASSERT_GT(first.end.best_score, 0.3);
  fs::copy(folder / "digits", folder / "others");
  const std::string name = "others/t10k-images-idx3-ubyte";
  std::string images = folder.get(name);
  for (size_t i = 16; i < images.size(); ++i) images[i] = static_cast<char>(i * i % 251);
  folder.put(name, images);
  const std::string resume = "resume=" + first.begin.folder.string(), data = "data=" + (folder / "others").string();
  EXPECT_ERROR(run({resume, data, "epochs=5"}), ConfigError, "the test data was 41 samples");
  const Course second = run({resume, data, "epochs=5", "resume_anyway=true"});
  EXPECT_NE(all_notes(second).find("the scores so far are of other test data"), std::string::npos);
  EXPECT_LT(second.end.best_score, first.end.best_score);
  EXPECT_EQ(second.end.best_score, second.evaluations.at(0).headline());
  EXPECT_TRUE(second.evaluations.at(0).best);
}

// Another share holds other images back, and another seed does.
TEST(Resume, BestScoresCountOnTheSameImagesThatAreHeldBackOnly) {
  ScratchFolder folder;
  const Course first = run(settings(folder, {"validation_share=0.2", "epochs=2"}), 20);
  ASSERT_TRUE(first.end.interrupted);
  const std::string resume = "resume=" + first.begin.folder.string();
  EXPECT_EQ(all_notes(run({resume}, 21)).find("of other test data"), std::string::npos);
  for (const char* other : {"validation_share=0.4", "seed=7", "validation_share=0"}) {
    ScratchFolder copy;
    fs::copy(folder / "digits", copy / "digits", fs::copy_options::recursive);
    fs::copy(folder / "runs", copy / "runs", fs::copy_options::recursive);
    const Course second = run(
        {"resume=" + (copy / "runs/1").string(), "data=" + (copy / "digits").string(), other, "resume_anyway=true"});
    EXPECT_NE(all_notes(second).find("the scores so far are of other test data"), std::string::npos)
        << other << ": " << all_notes(second);
  }
}

// What was saved after the step that a run goes back to is not taken for newer than what comes now.
TEST(Resume, GoingBackSetsWhatCameAfterAside) {
  ScratchFolder folder;
  const Course first = run(settings(folder, {"epochs=3", "save_freq=1", "keep_last=5"}));
  const fs::path run_folder = first.begin.folder, early = run_folder / "checkpoints" / checkpoint_name(15),
                 aside = run_folder / "set-aside-1";
  const auto before = files_in(run_folder);
  const Course back = run({"resume=" + early.string()}, 20);
  ASSERT_TRUE(back.end.interrupted);
  EXPECT_NE(all_notes(back).find("goes on from step 15: what was saved after it is in " + aside.string() + " now"),
            std::string::npos)
      << all_notes(back);
  const auto after = files_in(run_folder);
  for (const auto& [file, content] : before) {
    const bool is_later =
        file.starts_with("checkpoints/step-00000030/") || file.starts_with("checkpoints/step-00000045/");
    if (!is_later) continue;
    EXPECT_EQ(after.at("set-aside-1/" + file.substr(std::string("checkpoints/").size())), content) << file;
  }
  EXPECT_EQ(after.at("set-aside-1/best.safetensors"), before.at("best.safetensors"));
  // The first evaluation is the best one of its time.
  EXPECT_EQ(after.at("best.safetensors"), before.at("checkpoints/step-00000015/weights.safetensors"));
  EXPECT_EQ(newest_checkpoint(run_folder / "checkpoints"), run_folder / "checkpoints" / checkpoint_name(20));

  const Course rest = run({"resume=" + run_folder.string()});
  EXPECT_EQ(rest.begin.first_step, 20);
  EXPECT_EQ(rest.steps.back().step, 45);
  EXPECT_EQ(rest.steps.back().loss, first.steps.back().loss);
  EXPECT_EQ(rest.end.best_score, first.end.best_score);
  EXPECT_EQ(files_in(run_folder).at("checkpoints/step-00000045/weights.safetensors"),
            before.at("checkpoints/step-00000045/weights.safetensors"));
  // What was set aside is whole.
  const Course other = run({"resume=" + (aside / checkpoint_name(30)).string()}, 31);
  EXPECT_EQ(other.begin.first_step, 30);
}

// As a process that is killed while it sets them aside leaves them.
TEST(Resume, BestWeightsThatAreNotThereComeFromTheirCheckpoint) {
  ScratchFolder folder;
  const Course first = run(settings(folder, {"epochs=2", "save_freq=1"}), 20);
  ASSERT_TRUE(first.end.interrupted);
  const fs::path best = first.begin.folder / "best.safetensors";
  const std::string before = folder.get("runs/1/best.safetensors");
  fs::remove(best);
  const Course second = run({"resume=" + first.begin.folder.string()}, 21);
  ASSERT_TRUE(second.end.interrupted);
  EXPECT_EQ(all_notes(second), "");
  EXPECT_TRUE(folder.get("runs/1/best.safetensors") == before);
  // Without the checkpoint the best one is looked for anew.
  fs::remove(best);
  fs::remove_all(first.begin.folder / "checkpoints" / checkpoint_name(15));
  const Course third = run({"resume=" + first.begin.folder.string()});
  EXPECT_NE(all_notes(third).find("the best weights are looked for anew"), std::string::npos) << all_notes(third);
  EXPECT_TRUE(fs::exists(best));
}

// Where there is nothing left to do at that step, nothing is changed.
TEST(Resume, GoingBackToACompleteStepChangesNothing) {
  ScratchFolder folder;
  const Course first = run(settings(folder, {"epochs=2", "save_freq=1"}));
  const auto before = files_in(first.begin.folder);
  const fs::path early = first.begin.folder / "checkpoints" / checkpoint_name(15);
  EXPECT_TRUE(run({"resume=" + early.string(), "epochs=1"}).end.was_complete);
  EXPECT_EQ(files_in(first.begin.folder), before);
}

TEST(Resume, DataThatLiesElsewhereIsTheSame) {
  ScratchFolder folder;
  const Course first = run(settings(folder));
  fs::rename(folder / "digits", folder / "moved");
  const Course second =
      run({"resume=" + first.begin.folder.string(), "data=" + (folder / "moved").string(), "epochs=2"});
  EXPECT_EQ(second.steps.back().step, 30);
}

// What a version before fingerprints has saved is compared by its settings.
TEST(Resume, ACheckpointWithoutAFingerprintIsComparedBySettings) {
  ScratchFolder folder;
  const Course first = run(settings(folder));
  const fs::path checkpoint = first.end.checkpoint;
  nlohmann::json state = nlohmann::json::parse(read_checkpoint_state(checkpoint));
  EXPECT_TRUE(state.contains("fingerprint"));
  state.erase("fingerprint");
  const fs::path older = first.begin.folder / "checkpoints/step-00000016";
  fs::copy(checkpoint, older, fs::copy_options::recursive);
  std::ofstream(older / "state.json") << state.dump();
  nlohmann::json manifest = nlohmann::json::parse(std::ifstream(older / "manifest.json"));
  manifest["files"].erase("state.json");
  std::ofstream(older / "manifest.json") << manifest.dump();
  const std::string resume = "resume=" + first.begin.folder.string();
  EXPECT_ERROR(run({resume, "data=generated", "epochs=2"}), ConfigError, "data was ");
  EXPECT_ERROR(run({resume, "seed=7", "epochs=2"}), ConfigError, "seed was 1 and is 7");
  const Course second = run({resume, "epochs=2"});
  EXPECT_NE(all_notes(second).find("kept no fingerprint"), std::string::npos) << all_notes(second);
}

TEST(Resume, AnotherBuildIsSaid) {
  ScratchFolder folder;
  const Course first = run(settings(folder));
  const fs::path checkpoint = first.end.checkpoint;
  nlohmann::json state = nlohmann::json::parse(read_checkpoint_state(checkpoint));
  const std::string version = state["fingerprint"]["version"];
  EXPECT_NE(version.find(", build "), std::string::npos) << version;
  state["fingerprint"]["version"] = "0.0.9, build 12345678";
  std::ofstream(checkpoint / "state.json") << state.dump();
  nlohmann::json manifest = nlohmann::json::parse(std::ifstream(checkpoint / "manifest.json"));
  manifest["files"].erase("state.json");
  std::ofstream(checkpoint / "manifest.json") << manifest.dump();
  const Course second = run({"resume=" + first.begin.folder.string(), "epochs=2"});
  EXPECT_NE(all_notes(second).find("saved by version 0.0.9, build 12345678, this is " + version), std::string::npos)
      << all_notes(second);
}

TEST(Resume, AConfigurationThatWasEditedIsComparedWithTheCheckpoint) {
  ScratchFolder folder;
  const Course first = run(settings(folder));
  std::string yaml = folder.get("runs/1/config.yaml");
  yaml.replace(yaml.find("seed: 1"), 7, "seed: 2");
  folder.put("runs/1/config.yaml", yaml);
  EXPECT_ERROR(run({"resume=" + first.begin.folder.string(), "epochs=2"}), ConfigError, "seed was 1 and is 2");
}

TEST(Resume, ACheckpointOutsideARunSaysWhatToDo) {
  ScratchFolder folder;
  const Course first = run(settings(folder));
  fs::copy(first.end.checkpoint, folder / "step-00000015", fs::copy_options::recursive);
  EXPECT_ERROR(run({"resume=" + (folder / "step-00000015").string()}), ConfigError,
               "begin another run from its weights with init_from=" + (folder / "step-00000015").string());
}

// A configuration made in C++ says what it wants by what is not the default.
TEST(Resume, WhatAProgramSetsByHandCounts) {
  ScratchFolder folder;
  const Course first = run(settings(folder));
  Config config;
  config.resume = first.begin.folder.string();
  config.epochs = 2;
  Course course;
  Trainer trainer(config);
  trainer.add(std::make_unique<Witness>(course, -1));
  trainer.run();
  EXPECT_EQ(course.begin.batch_size, 32);
  EXPECT_EQ(course.steps.back().step, 30);
}

}  // namespace
}  // namespace bonfire::train::resume_test
