// What the program answers to words and files of all kinds: never a crash, never "unexpected", never silence.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "bonfire/base/machine.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/digits.h"
#include "tests/train/program.h"

namespace bonfire::train::command_line_test {
namespace {

namespace fs = std::filesystem;
using namespace bonfire::testing;
using bonfire::testing::Program;
using Words = std::vector<std::string>;

std::string output_of(const Words& arguments, int status) {
  ScratchFolder folder;
  Program program(arguments, folder / "out");
  EXPECT_EQ(program.wait(), status) << program.output();
  return program.output();
}

TEST(CommandLine, HelpAndTheVersionAreGivenHoweverTheyAreAskedFor) {
  const std::string help = output_of({"--help"}, 0), of_train = output_of({"train", "--help"}, 0);
  EXPECT_EQ(output_of({"help"}, 0), help);
  EXPECT_EQ(output_of({"help", "train"}, 0), of_train);
  EXPECT_EQ(output_of({"help", "data", "pack"}, 0), output_of({"data", "pack", "--help"}, 0));
  EXPECT_NE(output_of({"help", "trian"}, 2).find("there is no command 'trian'; the nearest is 'train'"),
            std::string::npos);
  const std::string version = output_of({"version"}, 0);
  EXPECT_EQ(output_of({"--version"}, 0), version);
  EXPECT_EQ(output_of({"-V"}, 0), version);
  expect_mentions(of_train, {"Examples:\n  bonfire train "});
}

TEST(CommandLine, HintsNameTheProgramAsItWasTyped) {
  ::setenv("BONFIRE_CALLED_AS", "./bonfire", 1);
  const std::string unknown = output_of({"train", "epochz=3"}, 1), command = output_of({"trian"}, 2),
                    help = output_of({"train", "--help"}, 0);
  ::unsetenv("BONFIRE_CALLED_AS");
  expect_mentions(unknown, {"(`./bonfire config` has them all)"});
  expect_mentions(command, {"(see ./bonfire --help)"});
  expect_mentions(help, {"\n  ./bonfire train --nproc 2", "./bonfire train [OPTIONS]"});
}

// The script, with a program in place of the real one that says what it is told.
TEST(CommandLine, TheScriptTellsTheProgramWhatWasTyped) {
  ScratchFolder folder;
  fs::copy(BONFIRE_SOURCE_DIR "/bonfire", folder / "bonfire");
  for (const char* name : {"src", "tools", "cmake", "build/release/bin"}) fs::create_directories(folder / name);
  for (const char* name : {"CMakeLists.txt", "CMakePresets.json"}) folder.put(name, "");
  folder.put("build/release/bin/bonfire", "#!/bin/sh\necho \"$BONFIRE_CALLED_AS $*\"\n");
  fs::permissions(folder / "build/release/bin/bonfire", fs::perms::all);
  folder.put("build/release/built_bonfire_program", "");
  auto run = [&](const std::string& line) {
    EXPECT_EQ(std::system(("cd " + folder.path().string() + " && " + line + " >said").c_str()), 0);
    return folder.get("said");
  };
  EXPECT_EQ(run("./bonfire train"), "./bonfire train\n");
  EXPECT_EQ(run("PATH=$PWD:$PATH bonfire train"), "bonfire train\n");
}

TEST(CommandLine, OutputThatCannotBeWrittenIsAFailure) {
  ScratchFolder folder;
  Program trained(
      {"train", data_of_digits(folder), "place=cpu", "model=mlp", "steps=2", "output=" + (folder / "runs").string()},
      folder / "out");
  ASSERT_EQ(trained.wait(), 0) << trained.output();
  const std::string run = (folder / "runs/1").string();
  for (const Words& words : std::vector<Words>{{"eval", run},
                                               {"eval", run, "--json"},
                                               {"inspect", run},
                                               {"inspect", "model", "model=mlp"},
                                               {"config"},
                                               {"devices"},
                                               {"version"},
                                               {"--version"},
                                               {"--help"},
                                               {"data", "list"},
                                               {"data", "check", (folder / "digits").string()},
                                               {"completion", "bash"}}) {
    Program program(words, "/dev/full");
    EXPECT_EQ(program.wait(), 1) << words[0];
  }
}

TEST(CommandLine, PredictGoesOnWithATextAndRefusesOptionsOfOtherTasks) {
  ScratchFolder folder;
  std::string text;
  for (int i = 0; i < 40; ++i) text += "what burns gives light\n";
  const std::string runs = (folder / "runs").string(), run = runs + "/1";
  Program trained({"train", "data=" + folder.put("book.txt", text).string(), "output=" + runs, "model=gpt2", "layers=1",
                   "heads=1", "width=16", "context=16", "seq_length=16", "batch_size=4", "steps=4", "place=cpu"},
                  folder / "out");
  ASSERT_EQ(trained.wait(), 0) << trained.output();
  expect_mentions(trained.output(), {"perplexity", "predict " + run + " \"a text to go on with\""});
  expect_mentions(output_of({"eval", run, "--json"}, 0), {"\"perplexity\":"});
  const std::string likeliest = output_of({"predict", run, "what ", "--tokens", "8"}, 0);
  EXPECT_EQ(likeliest.substr(0, 5), "what ");
  EXPECT_EQ(likeliest.size(), 5U + 8 + 1);
  EXPECT_EQ(output_of({"predict", run + "/best.safetensors", "what ", "--tokens", "8"}, 0), likeliest);
  const Words drawing{"predict", run, "what ", "--temperature", "2", "--tokens", "40", "--seed"};
  auto drawn = [&](const std::string& seed) {
    Words words = drawing;
    words.push_back(seed);
    return output_of(words, 0);
  };
  EXPECT_EQ(drawn("3"), drawn("3"));
  EXPECT_NE(drawn("3"), drawn("4"));
  expect_mentions(output_of({"predict", run, "what ", "--json"}, 0), {"\"continuation\":", "\"tokens\":64"});
  expect_mentions(output_of({"predict", run, "what ", "--top", "5"}, 1), {"--top is for runs that name classes"});
  expect_mentions(output_of({"predict", run, ""}, 1), {"the prompt is empty"});
  expect_mentions(output_of({"inspect", folder.path().string()}, 1), {"is neither"});
  folder.put("train.txt", text);
  expect_mentions(output_of({"inspect", folder.path().string()}, 0),
                  {"(bytes): 13 to train on, 2 to test, 256 classes"});
}

TEST(CommandLine, ADamagedCheckpointIsAFailureOfInspect) {
  ScratchFolder folder;
  Program trained({"train", data_of_digits(folder), "place=cpu", "model=mlp", "epochs=2", "limit=64",
                   "output=" + (folder / "runs").string()},
                  folder / "out");
  ASSERT_EQ(trained.wait(), 0) << trained.output();
  const std::string run = (folder / "runs/1").string(), last = run + "/checkpoints/step-00000002";
  output_of({"inspect", run}, 0);
  fs::resize_file(last + "/weights.safetensors", 100);
  expect_mentions(output_of({"inspect", last}, 1), {"DAMAGED: weights.safetensors has 100 bytes"});
  expect_mentions(output_of({"inspect", run}, 1), {"damaged: " + last, "step-00000001: whole"});
  fs::remove_all(run + "/checkpoints/step-00000001");
  expect_mentions(output_of({"inspect", run}, 1), {"weights.safetensors has 100 bytes"});
  std::ofstream(last + "/manifest.json") << "{\"files\": 3}";
  expect_mentions(output_of({"inspect", last}, 1), {"DAMAGED: "});
}

// Each at once, in one line, with the limit.
TEST(CommandLine, WhatTheMachineCannotDoIsRefused) {
  const std::string limit = std::to_string(base::most_tasks()), many = std::to_string(base::most_tasks() + 1);
  for (const Words& words : std::vector<Words>{{"train", "num_workers=" + many},
                                               {"train", "strategy.cpu_threads=" + many},
                                               {"train", "num_gpus=" + many},
                                               {"train", "--nproc", many},
                                               {"launch", "--nproc_per_node", many, "true"},
                                               {"launch", "--nproc_per_node", "2000000000", "true"}}) {
    const std::string text = output_of(words, 1);
    expect_mentions(text, {"expected at most " + limit});
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  }
  for (const Words& words : std::vector<Words>{{"train", "image_size=100000"},
                                               {"train", "image_size=65535", "batch_size=10000"},
                                               {"train", "batch_size=1000000000000"},
                                               {"train", "batch_size=9000000000000000000"},
                                               {"train", "batch_size=1000000000", "drop_last=false"},
                                               {"inspect", "plan", "model=resnet18", "batch_size=1000000"},
                                               {"inspect", "plan", "model=mlp", "batch_size=1000000000"}}) {
    const std::string text = output_of(words, 1);
    EXPECT_EQ(text.find("unexpected"), std::string::npos) << text;
    EXPECT_EQ(text.find("terminate"), std::string::npos) << text;
    EXPECT_EQ(text.find("bonfire: ["), 0U) << text;
    expect_mentions(text, {"expected"});
  }
  ::setenv("BONFIRE_CPU_THREADS", "many", 1);
  ScratchFolder folder;
  const Words train{"train", "steps=1", "place=cpu", "output=" + folder.path().string()};
  expect_mentions(output_of(train, 1), {"BONFIRE_CPU_THREADS is 'many', expected a whole number"});
  ::setenv("BONFIRE_CPU_THREADS", many.c_str(), 1);
  expect_mentions(output_of(train, 1), {"BONFIRE_CPU_THREADS is " + many + ", expected 1 to " + limit});
  ::unsetenv("BONFIRE_CPU_THREADS");
}

TEST(CommandLine, BadInputIsNeverUnexpected) {
  ScratchFolder folder;
  folder.put("file", "text");
  fs::create_directory(folder / "folder");
  fs::create_symlink("loop", folder / "loop");
  const std::string file = (folder / "file").string(), empty = (folder / "folder").string(),
                    loop = (folder / "loop").string(), absent = (folder / "absent").string();
  std::vector<Words> all;
  for (const std::string& place : {file, empty, loop, absent, std::string(5000, 'x'), std::string("/dev/null")}) {
    all.insert(all.end(), {{"train", place},
                           {"train", "data=" + place},
                           {"train", "train_file=" + place, "test_file=" + place},
                           {"train", "init_from=" + place},
                           {"train", "resume=" + place},
                           {"train", "data=" + place, "model=bert_mini"},
                           {"eval", place},
                           {"inspect", place},
                           {"predict", place, file},
                           {"data", "check", place},
                           {"data", "pack", place, absent},
                           {"launch", place}});
  }
  all.push_back({"train", "output=" + loop});
  all.push_back({"train", "output=" + file});
  all.push_back({"train", "milestones=[[1]]"});
  all.push_back({"train", "place=cpu:99"});
  all.push_back({"train", "place=,"});
  all.push_back({"train", "=3"});
  for (const Words& words : all) {
    Program program(words, folder / "out");
    std::string line;
    for (const std::string& word : words) line += word.substr(0, 100) + " ";
    EXPECT_NE(program.wait(), 0) << line << program.output();
    for (const char* word : {"unexpected", "invariant", "terminate", "std::", "basic_string"})
      EXPECT_EQ(program.output().find(word), std::string::npos) << line << program.output();
    EXPECT_EQ(program.output().find("bonfire"), 0U) << line << program.output();
  }
}

// Columns of tables are as wide as what is in them: one space for any number.
std::string squeezed(const std::string& text) {
  std::string result;
  std::unique_copy(text.begin(), text.end(), std::back_inserter(result),
                   [](char one, char next) { return one == ' ' && next == ' '; });
  return result;
}

TEST(CommandLine, InspectShardsSaysWhatEachRankHoldsAndWhatTheyGather) {
  auto shards = [](const Words& settings) {
    Words words{"inspect", "shards"};
    words.insert(words.end(), settings.begin(), settings.end());
    return squeezed(output_of(words, 0));
  };
  expect_mentions(shards({"model=mlp", "mesh.tensor=2"}),
                  {"\nfc1.weight [256, 784] axis 0 [128, 784]\n", "\nfc1.bias [256] axis 0 [128]\n",
                   "\nfc2.weight [128, 256] axis 1 [128, 128]\n", "\nfc2.bias [128] whole [128]\n",
                   // 128 · 784 + 128, 128 · 128 + 128, 10 · 128 + 10 numbers
                   "\n118,282 of 235,146 numbers are on each rank\n", "\nno op gathers what ranks have parts of\n"});
  const std::string decoder =
      "\ncls.predictions.decoder.weight [30522, 256] axis 0 [15261, 256] "
      "(the same as bert.embeddings.word_embeddings.weight)\n";
  const std::string bert_mini = std::string(BONFIRE_SOURCE_DIR) + "/configs/bert_mini.yaml";
  // Two of four heads of 64 elements, half of the 1024 features and of the 30522 words.
  expect_mentions(shards({bert_mini, "batch_size=1", "mesh.tensor=2"}),
                  {"\nbert.encoder.layer.0.attention.self.query.weight [256, 256] axis 0 [128, 256]\n",
                   "\nbert.encoder.layer.3.attention.self.value.bias [256] axis 0 [128]\n",
                   "\nbert.encoder.layer.0.attention.output.dense.weight [256, 256] axis 1 [256, 128]\n",
                   "\nbert.encoder.layer.0.intermediate.dense.weight [1024, 256] axis 0 [512, 256]\n", decoder,
                   "\n5,703,069 of 11,201,594 numbers are on each rank\n"});
  expect_mentions(shards({"model=bert_mini", "batch_size=1", "mesh.tensor=4"}),
                  {"\nbert.embeddings.word_embeddings.weight [30522, 256] whole: no equal parts [30522, 256]\n",
                   "\nbert.encoder.layer.0.attention.self.query.weight [256, 256] axis 0 [64, 256]\n"});
  expect_mentions(shards({"model=gpt2", "batch_size=1", "mesh.tensor=2"}),
                  {"attn.c_attn.weight [768, 2304] axis 1 in 3 blocks [768, 1152]\n"});
  // Of each of two layers 100 tokens' sums for 4 gates of 64 elements, in f32.
  expect_mentions(shards({"model=lstm_classifier", "batch_size=1", "mesh.tensor=2", "tensor.split.*weight_ih*=0/4"}),
                  {"\nlstm.weight_ih_l0 [256, 64] axis 0 in 4 blocks [128, 64]\n",
                   "\nops that have no rule for parts, and gather: lstm_layer (lstm, 204.8 kB)\n"});
}

TEST(CommandLine, InspectScheduleSaysWhichStageDoesWhatWhen) {
  auto schedule = [](const char* kind, const char* micro_batches, const Words& more = {}) {
    Words words{"inspect", "schedule", "--stages", "2", "--micro-batches", micro_batches, "--schedule", kind};
    words.insert(words.end(), more.begin(), more.end());
    return output_of(words, 0);
  };
  expect_mentions(schedule("gpipe", "3"), {"gpipe, 2 stages, 3 micro-batches; F takes 1, B 2\n",
                                           "\nstage 0  F0 F1 F2 .  .  .  B0 B0 B1 B1 B2 B2\n"
                                           "stage 1  .  F0 F1 F2 B0 B0 B1 B1 B2 B2 .  .\n",
                                           "\nlength 12, idle 25.0 %\nstage 0: 3 slots, "});
  expect_mentions(schedule("1f1b", "3"), {"\nstage 0  F0 F1 .  .  B0 B0 F2 B1 B1 .  B2 B2\n"
                                          "stage 1  .  F0 B0 B0 F1 B1 B1 F2 B2 B2 .  .\n",
                                          "\nstage 0: 2 slots, ", "\nstage 1: 1 slots, "});
  expect_mentions(schedule("interleaved", "2", {"--chunks", "2"}),
                  {"interleaved, 2 ranks with 2 stages each, 2 micro-batches", "\nrank 0  F0  F1  F0b F1b "});
  EXPECT_EQ(schedule("zero_bubble", "2", {"--items"}),
            "stage 0\n"
            "     0  F 0 in slot 0\n"
            "     1  SEND activations of 0 to 1\n"
            "     2  RECEIVE gradients of 0 from 1 in slot 0\n"
            "     3  F 1 in slot 1\n"
            "     4  SEND activations of 1 to 1\n"
            "     5  B 0 of slot 0\n"
            "     6  RECEIVE gradients of 1 from 1 in slot 1\n"
            "     7  W 0 of slot 0\n"
            "     8  B 1 of slot 1\n"
            "     9  W 1 of slot 1\n"
            "    10  REDUCE\n"
            "    11  U\n"
            "stage 1\n"
            "     0  RECEIVE activations of 0 from 0 in slot 0\n"
            "     1  F 0 in slot 0\n"
            "     2  RECEIVE activations of 1 from 0 in slot 1\n"
            "     3  B 0 of slot 0\n"
            "     4  SEND gradients of 0 to 0\n"
            "     5  F 1 in slot 1\n"
            "     6  B 1 of slot 1\n"
            "     7  SEND gradients of 1 to 0\n"
            "     8  W 0 of slot 0\n"
            "     9  W 1 of slot 1\n"
            "    10  REDUCE\n"
            "    11  U\n");
}

TEST(CommandLine, InspectScheduleOfAModelSaysWhereItIsCut) {
  expect_mentions(
      squeezed(output_of({"inspect", "schedule", "model=mlp", "batch_size=32", "mesh.pipeline=2",
                          "pipeline.schedule=gpipe", "pipeline.micro_batches=2", "pipeline.cut=[fc3]"},
                         0)),
      {"stage begins a part share memory\n0 ", "\n1 fc3 ", "\nas was said: pipeline.cut=[fc3]; ",
       "\ngpipe, 2 stages, 2 micro-batches", "\nstage 0 F0 F1 . . . B0 B0 B1 B1\nstage 1 . F0 F1 B0 B0 B1 B1 . .\n"});
  // The classifier of VGG-16 has 123,642,856 parameters, and as many gradients: 989 MB.
  const std::string vgg16 = std::string(BONFIRE_SOURCE_DIR) + "/configs/vgg16.yaml";
  const std::string of_vgg = squeezed(output_of({"inspect", "schedule", vgg16, "image_size=32", "batch_size=8"}, 0));
  expect_mentions(of_vgg, {"\n1 classifier ", " % 989.", "\nas was said: pipeline.cut=[classifier]; ",
                           "\n1f1b, 2 stages, 8 micro-batches"});
}

// 235,146 numbers of 4 bytes; a batch is 64 images of 784 numbers and 64 labels of 8 bytes, three are under way.
TEST(CommandLine, InspectMemorySaysWhatAStepNeeds) {
  const std::string text = squeezed(output_of({"inspect", "memory", "model=mlp", "place=cpu", "optimizer=adam"}, 0));
  expect_mentions(
      text, {"cpu:0\n parameters and buffers 940.6 kB\n", "\n gradients 940.6 kB\n", "\n optimizer state 1.9 MB\n",
             "\n temporaries ", "\n in all ", "\ntemporaries over the step\n", "matmul"});
  const std::string parts =
      squeezed(output_of({"inspect", "memory", "model=mlp", "place=cpu", "num_gpus=2", "mesh.tensor=2"}, 0));
  expect_mentions(parts, {"cpu:0, rank 0 of tensor 2\n parameters and buffers 473.1 kB\n"});  // 118,282 of them
}

TEST(CommandLine, InspectRefusesShardsAndSchedulesThatCannotBe) {
  struct Refused {
    Words words;
    std::string why;
    int status = 1;
  };
  for (const Refused& one : std::vector<Refused>{
           {{"shards", "model=mlp"}, "say how many ranks it has: mesh.tensor=2"},
           {{"shards", "model=mlp", "mesh.tensor=2", "tensor.split.fc9=0"}, "'fc9' matches nothing of the model"},
           {{"shards", "model=mlp", "mesh.tensor=3", "tensor.split.fc1.weight=0"},
            "axis 0 of fc1.weight [256, 784] cannot be shared out evenly among 3 ranks"},
           {{"shards", "model=lstm_classifier", "mesh.tensor=2"}, "this model brings no plan for a tensor axis"},
           {{"schedule", "--stages", "0"}, "the number of stages is 0, expected at least 1"},
           {{"schedule", "--stages", "1025"}, "1025 is too many to be printed, expected at most 1024"},
           {{"schedule", "--stages", "two"}, "--stages = two", 2},
           {{"schedule", "--micro-batches", "0"}, "micro_batches is 0, expected at least 1"},
           {{"schedule", "--chunks", "2"}, "schedule 1f1b has one chunk on each rank, 2 were asked for"},
           {{"schedule", "--schedule", "1f2b"}, "there is no schedule '1f2b'; expected gpipe, 1f1b, zero_bubble"},
           {{"schedule", "model=mlp", "mesh.pipeline=2", "--items"}, "are of a schedule without a model"},
           {{"memory", "resume=auto"}, "give its config.yaml"},
           {{"memory", "model=mlp", "place=cuda:7"}, "cuda:7"},
           {{"schedule", "model=mlp"}, "say how many: mesh.pipeline=2"},
           {{"schedule", "model=mlp", "mesh.pipeline=2", "pipeline.cut=[fc9]"}, "there are fc1, fc2, fc3"},
           {{"schedule", "model=mlp", "mesh.pipeline=2", "batch_size=4", "pipeline.micro_batches=8"},
            "pipeline.micro_batches is 8, and batch_size 4"},
           {{"schedule", "absent.yaml"}, "there is no file absent.yaml"}}) {
    Words words{"inspect"};
    words.insert(words.end(), one.words.begin(), one.words.end());
    const std::string text = output_of(words, one.status);
    expect_mentions(text, {one.why});
    EXPECT_EQ(text.find("bonfire: "), 0U) << text;
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  }
}

}  // namespace
}  // namespace bonfire::train::command_line_test
