// The program itself, in processes of its own.

#include "tests/train/program.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <set>
#include <thread>

#include "bonfire/base/random.h"
#include "bonfire/nn/safetensors.h"
#include "bonfire/train/checkpoint/checkpoint.h"
#include "bonfire/train/report/timeline.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/digits.h"

namespace bonfire::train::program_test {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::Program;
using bonfire::testing::ScratchFolder;

std::vector<std::string> training(const ScratchFolder& folder, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments{"train",         data_of_digits(folder),
                                     "place=cpu",     "output=" + (folder / "runs").string(),
                                     "limit=320",     "epochs=3",
                                     "batch_size=32", "log_freq=1",
                                     "model=lenet"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// Of the last run: one that is killed before it has saved anything is begun anew, in a folder of its own.
std::string newest_weights(const ScratchFolder& folder) {
  int last = 1;
  while (fs::exists(folder / fmt::format("runs/{}", last + 1))) ++last;
  std::optional<fs::path> checkpoint = newest_checkpoint(folder / fmt::format("runs/{}/checkpoints", last));
  if (!checkpoint) return "no checkpoint";
  std::ifstream stream(weights_file(*checkpoint), std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::string uninterrupted_weights(const std::vector<std::string>& settings) {
  ScratchFolder folder;
  Program program(training(folder, settings), folder / "out");
  EXPECT_EQ(program.wait(), 0) << program.output();
  return newest_weights(folder);
}

// Kills come within the time of three epochs, wherever that is in a run. BONFIRE_KILLS=50 kills as many runs of a
// longer training.
TEST(Program, KilledAtAnyMomentItResumesToTheSameBits) {
  const char* asked = std::getenv("BONFIRE_KILLS");
  uint64_t kills = asked == nullptr ? 4 : std::strtoull(asked, nullptr, 10);
  uint64_t epochs = std::max<uint64_t>(3, kills / 2);
  std::vector<std::string> settings{fmt::format("epochs={}", epochs), "resume=auto"};
  double start = seconds_now();
  std::string expected = uninterrupted_weights(settings);
  double three_epochs = 3 * (seconds_now() - start) / static_cast<double>(epochs);
  ScratchFolder folder;
  std::set<std::string> beginnings;
  for (uint64_t i = 0; i < kills; ++i) {
    Program program(training(folder, settings), folder / "out");
    std::this_thread::sleep_for(std::chrono::duration<double>(uniform_at(3, 1, i) * three_epochs));
    program.signal(SIGKILL);
    program.wait();
    if (size_t at = program.output().find("step-"); at != std::string::npos)
      beginnings.insert(program.output().substr(at, 13));
  }
  Program last(training(folder, settings), folder / "out");
  EXPECT_EQ(last.wait(), 0) << last.output();
  EXPECT_TRUE(newest_weights(folder) == expected) << last.output();
  fmt::print("{} kills; resumed from {} different checkpoints\n", kills, beginnings.size());
}

TEST(Program, TheFileOfSettingsMayFollowConfig) {
  ScratchFolder folder;
  const std::string file = folder.put("a.yaml", "MODEL: mlp\nlimit: 64\nsteps: 2\nlr: 0.5\n").string();
  std::vector<std::string> arguments{"train", "--config", file, "lr=0.25"};
  for (const std::string& more : training(folder))
    if (!more.starts_with("model=") && !more.starts_with("limit=") && more != "train") arguments.push_back(more);
  arguments.insert(arguments.end(), {"--nproc", "2"});  // the ranks are told of it too
  Program program(arguments, folder / "out");
  EXPECT_EQ(program.wait(), 0) << program.output();
  std::ifstream stream(folder / "runs/1/config.yaml");
  const std::string used{std::istreambuf_iterator<char>(stream), {}};
  EXPECT_NE(used.find("model: \"mlp\"\n"), std::string::npos) << used;
  EXPECT_NE(used.find("lr: 0.25\n"), std::string::npos) << used;
  Program two({"train", file, "--config", file}, folder / "two");
  EXPECT_EQ(two.wait(), 1);
  EXPECT_NE(two.output().find("[train] two files, '" + file + "' and --config " + file), std::string::npos)
      << two.output();
}

TEST(Program, BenchStrategySaysWhatEachOptionGains) {
  if (!fs::exists(fs::path(BONFIRE_PROGRAM).parent_path() / "bench_strategy"))
    GTEST_SKIP() << "bench_strategy is not built";
  ScratchFolder folder;
  const std::string file = folder.put("a.yaml", "model: mlp\nbatch_size: 8\nlimit: 64\nplace: cpu\n").string();
  Program program({"bench", "strategy", file, "lr=0.01", "--nproc", "2", "--rounds", "1", "--steps", "2", "--only",
                   "fuse_all_reduce_ops,use_local_sgd", "--json", (folder / "rows.json").string()},
                  folder / "out");
  EXPECT_EQ(program.wait(), 0) << program.output();
  for (const char* text : {"2 ranks, 1 round of 2 steps", "all off  ", "strategy.use_local_sgd=true  ",
                           "strategy.fuse_all_reduce_ops=true  ", "all on, but for local SGD and sharding  ", " %\n"})
    EXPECT_NE(program.output().find(text), std::string::npos) << text << " in\n" << program.output();
  EXPECT_EQ(program.output().find("refused"), std::string::npos) << program.output();
  EXPECT_NE(folder.get("rows.json").find("\"samples_per_second\""), std::string::npos);
  Program alone({"bench", "strategy", "--only", "use_local_sgd"}, folder / "alone");
  EXPECT_EQ(alone.wait(), 1);
  EXPECT_NE(alone.output().find("cannot be measured on 1 rank(s); there are fuse_bn_act_ops,"), std::string::npos)
      << alone.output();
  Program wrong({"bench", "strategy", "lr=-1"}, folder / "wrong");
  EXPECT_EQ(wrong.wait(), 1);
  EXPECT_NE(wrong.output().find("lr is -1, expected above 0"), std::string::npos) << wrong.output();
}

TEST(Program, EvaluatesAndInspectsWhatItTrained) {
  ScratchFolder folder;
  Program trained(training(folder, {"epochs=1"}), folder / "out");
  ASSERT_EQ(trained.wait(), 0) << trained.output();
  std::string top1 = trained.output().substr(trained.output().find("\ndone after "));
  EXPECT_NE(top1.find("% on 41 test images; it is the best, chosen on these images\n"), std::string::npos) << top1;
  top1 = top1.substr(top1.find("top-1 ") + 6);
  top1 = top1.substr(0, top1.find('%'));  // "63.20 "

  Program eval({"eval", (folder / "runs/1").string(), "place=cpu"}, folder / "eval");
  EXPECT_EQ(eval.wait(), 0);
  EXPECT_NE(eval.output().find("top-1 " + top1), std::string::npos) << eval.output() << trained.output();
  Program json({"eval", (folder / "runs/1").string(), "--json"}, folder / "json");
  EXPECT_EQ(json.wait(), 0);
  EXPECT_EQ(json.output().substr(0, 9), "{\"loss\": ");

  Program inspect({"inspect", (folder / "runs/1").string()}, folder / "inspect");
  EXPECT_EQ(inspect.wait(), 0);
  for (const char* part : {"step-00000010: whole", "conv1.weight", "momentum_buffer", "tensors"})
    EXPECT_NE(inspect.output().find(part), std::string::npos) << part << inspect.output();
  Program none({"inspect", (folder / "absent").string()}, folder / "none");
  EXPECT_EQ(none.wait(), 1);
  EXPECT_NE(none.output().find("neither a safetensors file"), std::string::npos);
}

TEST(Program, ExportsWeightsAndLosesNoFile) {
  ScratchFolder folder;
  Program trained(training(folder, {"epochs=1"}), folder / "out");
  ASSERT_EQ(trained.wait(), 0) << trained.output();
  const std::string run = (folder / "runs/1").string(), file = (folder / "model.safetensors").string();
  Program exported({"export", run, file}, folder / "export");
  EXPECT_EQ(exported.wait(), 0) << exported.output();
  EXPECT_NE(exported.output().find("10 tensors with "), std::string::npos) << exported.output();
  const auto best = nn::SafetensorsFile::open(folder / "runs/1/best.safetensors"),
             found = nn::SafetensorsFile::open(file);
  ASSERT_EQ(found.entries().size(), best.entries().size());
  for (const nn::TensorEntry& entry : best.entries()) {
    const nn::TensorEntry* same = found.find(entry.name);
    ASSERT_NE(same, nullptr) << entry.name;
    EXPECT_TRUE(std::equal(entry.bytes.begin(), entry.bytes.end(), same->bytes.begin(), same->bytes.end()));
  }
  EXPECT_EQ(found.metadata().at("format"), "pt");
  EXPECT_EQ(found.metadata().at("model"), "lenet");

  Program again({"export", run, file}, folder / "again");
  EXPECT_EQ(again.wait(), 1);
  EXPECT_NE(again.output().find("is there already; --replace writes over it"), std::string::npos) << again.output();
  Program step({"export", run + "/checkpoints/step-00000010", file, "--replace"}, folder / "step");
  EXPECT_EQ(step.wait(), 0) << step.output();
  Program other({"export", run, "model.bin"}, folder / "other");
  EXPECT_EQ(other.wait(), 1);
  EXPECT_NE(other.output().find("ends in .safetensors"), std::string::npos) << other.output();
}

TEST(Program, PacksChecksListsAndTrainsOnRecords) {
  ScratchFolder folder;
  std::string images("\0\0\x08\x03\0\0\0\x40\0\0\0\x1c\0\0\0\x1c", 16), labels("\0\0\x08\x01\0\0\0\x40", 8);
  for (int i = 0; i < 64; ++i) {
    images += std::string(28 * 28, static_cast<char>(i * 3));
    labels += static_cast<char>(i % 4);
  }
  fs::create_directory(folder / "mnist");
  for (const char* part : {"train", "t10k"}) {
    folder.put(fmt::format("mnist/{}-images-idx3-ubyte", part), images);
    folder.put(fmt::format("mnist/{}-labels-idx1-ubyte", part), labels);
  }
  auto output_of = [&](const std::vector<std::string>& arguments, int status) {
    Program program(arguments, folder / "out");
    EXPECT_EQ(program.wait(), status) << program.output();
    return program.output();
  };
  std::string source = (folder / "mnist").string(), packed = (folder / "packed").string();
  EXPECT_NE(output_of({"data", "pack", source, packed, "--shards", "4"}, 0).find("64 samples to train on"),
            std::string::npos);
  EXPECT_NE(output_of({"data", "pack", source, packed}, 1).find("is there already"), std::string::npos);
  EXPECT_NE(output_of({"data", "list", folder.path().string()}, 0).find("record shards            data=" + packed),
            std::string::npos);
  EXPECT_NE(output_of({"data", "check", packed}, 0).find("64 samples to train on, 64 to test: all whole"),
            std::string::npos);
  EXPECT_EQ(output_of({"train", "data=" + packed, "place=cpu", "epochs=1", "batch_size=16", "model=lenet",
                       "output=" + (folder / "runs").string()},
                      0)
                .find("training lenet"),
            0U);
  std::string shard = folder.get("packed/train-00002.records");
  shard[500] ^= 1;
  folder.put("packed/train-00002.records", shard);
  EXPECT_NE(output_of({"data", "check", packed, "--json"}, 1).find("train-00002.records: record 0 (sample 32)"),
            std::string::npos);
  EXPECT_NE(output_of({"train", "data=" + packed, "place=cpu", "epochs=1", "batch_size=16", "model=lenet",
                       "output=" + (folder / "runs").string()},
                      1)
                .find("train-00002.records: record 0 (sample 32)"),
            std::string::npos);
}

// What bash offers after these words, one a line.
std::string completions(const ScratchFolder& folder, const std::string& words) {
  folder.put("complete.sh", "source <(\"$1\" completion bash)\nCOMP_WORDS=(" + words +
                                ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_bonfire 2>/dev/null\n"
                                "printf '%s\\n' \"${COMPREPLY[@]}\" >\"$2\"\n");
  std::string command =
      "bash " + (folder / "complete.sh").string() + " " BONFIRE_PROGRAM " " + (folder / "words").string();
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  return folder.get("words");
}

TEST(Program, BashCompletesCommandsKeysAndValues) {
  ScratchFolder folder;
  EXPECT_EQ(completions(folder, "bonfire tr"), "train \n");
  EXPECT_EQ(completions(folder, "bonfire train ema"), "ema_decay=\n");
  EXPECT_EQ(completions(folder, "bonfire train optimizer = nest"), "nesterov \n");
  EXPECT_EQ(completions(folder, "bonfire train model = resnet18"), "resnet18 \nresnet18_small \n");
  EXPECT_EQ(completions(folder, "bonfire predict --j"), "--json \n");
  EXPECT_NE(completions(folder, "bonfire ''").find("inspect \n"), std::string::npos);
  folder.put("picture.png", "");
  std::string start = (folder / "pict").string();
  EXPECT_EQ(completions(folder, "bonfire predict runs/1 " + start), (folder / "picture.png").string() + "\n");
}

// What zsh offers after these words, one a line: with its own functions in place of the editor's, which need a
// terminal.
std::string zsh_completions(const ScratchFolder& folder, const std::string& words) {
  folder.put("complete.zsh",
             "compdef() { : }; _files() { print files }\n"
             "compset() { typed=${words[CURRENT]#*=} }\n"
             "compadd() { local kind=${@[-1]} none=1 i; for i in ${(P)kind}; do\n"
             "  [[ $i != ${typed}* ]] || { print -r -- $i; none=0 }; done; return none }\n"
             "source <(\"$1\" completion zsh)\nwords=(" +
                 words + ")\nCURRENT=$#words typed=${words[-1]}\n_bonfire >\"$2\"\n");
  std::string command =
      "zsh -f " + (folder / "complete.zsh").string() + " " BONFIRE_PROGRAM " " + (folder / "words").string();
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  return folder.get("words");
}

TEST(Program, ZshCompletesCommandsKeysAndValues) {
  if (std::system("command -v zsh >/dev/null") != 0) GTEST_SKIP() << "there is no zsh here";
  ScratchFolder folder;
  EXPECT_EQ(zsh_completions(folder, "bonfire tr"), "train\n");
  EXPECT_EQ(zsh_completions(folder, "bonfire train ema"), "ema_decay=\n");
  EXPECT_EQ(zsh_completions(folder, "bonfire train optimizer=nest"), "nesterov\n");
  EXPECT_EQ(zsh_completions(folder, "bonfire train model=resnet18"), "resnet18\nresnet18_small\n");
  EXPECT_EQ(zsh_completions(folder, "bonfire train data=pho"), "files\n");
  EXPECT_EQ(zsh_completions(folder, "bonfire predict --j"), "--json\n");
  EXPECT_EQ(zsh_completions(folder, "bonfire predict runs/1 pict"), "files\n");
  EXPECT_EQ(zsh_completions(folder, "bonfire data pa"), "pack\n");
}

TEST(Program, InspectsDataModelsGraphsAndPlans) {
  ScratchFolder folder;
  auto output_of = [&](const std::vector<std::string>& arguments) {
    Program program(arguments, folder / "out");
    EXPECT_EQ(program.wait(), 0) << program.output();
    return program.output();
  };
  EXPECT_NE(output_of({"inspect", "model", "model=lenet"}).find("conv2"), std::string::npos);
  EXPECT_NE(output_of({"inspect", "graph", "model=lenet", "batch_size=2"}).find("# conv1"), std::string::npos);
  EXPECT_EQ(output_of({"inspect", "graph", "model=lenet", "batch_size=2", "--dot"}).substr(0, 9), "digraph s");
  EXPECT_NE(output_of({"inspect", "plan", "model=lenet", "batch_size=2", "--steps", "1"}).find("optimizer_update"),
            std::string::npos);
  EXPECT_EQ(output_of({"inspect", "plan", "model=lenet", "batch_size=2", "--steps", "1", "--json"}).substr(0, 2),
            "{\"");
  EXPECT_NE(output_of({"inspect", "generated"}).find("20000 to train on, 4000 to test, 10 classes"), std::string::npos);
}

TEST(Program, BadInputIsAnErrorOnOneLine) {
  ScratchFolder folder;
  auto output_of = [&](const std::vector<std::string>& arguments, int status) {
    Program program(arguments, folder / "out");
    EXPECT_EQ(program.wait(), status);
    return program.output();
  };
  EXPECT_EQ(output_of({"train", "epoch=3"}, 1),
            "bonfire: [config] command line: there is no key 'epoch'; here it is 'epochs'\n");
  EXPECT_EQ(output_of({"train", "absent.yaml"}, 1),
            "bonfire: [config] there is no file absent.yaml; expected a YAML file, then settings as key=value\n");
  EXPECT_EQ(output_of({"eval", "absent"}, 1),
            "bonfire: [config] there is no file absent/config.yaml; 'absent' is not the folder of a run\n");
  EXPECT_NE(
      output_of({"train", "--trace", "/absent/trace.json"}, 1).find("cannot open the folder for '/absent/trace.json"),
      std::string::npos);
  EXPECT_EQ(output_of({"train", "--nproc", "2", "place=cpu:0,cpu:1"}, 1),  // before ranks are started
            "bonfire: [train] place names 2 devices for one process, and num_gpus asks for 2 processes; leave one of "
            "them out\n");
  EXPECT_EQ(output_of({"trian"}, 2),
            "bonfire: there is no command 'trian'; the nearest is 'train' (see bonfire --help)\n");
  EXPECT_EQ(output_of({"eval", "--jsn", "runs/1"}, 2),
            "bonfire: bonfire eval has no option '--jsn'; the nearest is '--json' (see bonfire eval --help)\n");
  EXPECT_EQ(output_of({"train", "--learning-rate", "0.1"}, 2),
            "bonfire: bonfire train has no option '--learning-rate'; settings have no dashes in front: lr=VALUE (see "
            "bonfire train --help)\n");
  EXPECT_NE(output_of({"devices", "--log-level", "loud"}, 2).find("bonfire: bonfire devices: --log-level: loud not in"),
            std::string::npos);
  EXPECT_EQ(output_of({"eval"}, 2), "bonfire: bonfire eval: run is required (see bonfire eval --help)\n");
  EXPECT_NE(output_of({}, 2).find("what shall be done? train, eval"), std::string::npos);
  EXPECT_NE(output_of({"bench", "nothing"}, 1).find("there is no "), std::string::npos);
  EXPECT_NE(output_of({"predict", "runs/1"}, 1).find("of what? Name what the run"), std::string::npos);
  EXPECT_NE(output_of({"completion", "fish"}, 2).find("see bonfire completion --help"), std::string::npos);
  EXPECT_NE(output_of({"train", "output=/dev/null/runs"}, 1).find("choose another output"), std::string::npos);
  EXPECT_NE(output_of({"version"}, 0).find("bonfire 0."), std::string::npos);
  EXPECT_NE(output_of({"devices"}, 0).find("cpu:0"), std::string::npos);
  EXPECT_NE(output_of({"config"}, 0).find("| `batch_size` |"), std::string::npos);
}

}  // namespace
}  // namespace bonfire::train::program_test
