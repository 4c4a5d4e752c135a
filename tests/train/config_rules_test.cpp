// What settings say together, what the environment adds, and what this machine cannot do.

#include "bonfire/train/config/config_rules.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "bonfire/base/error.h"
#include "bonfire/base/machine.h"
#include "bonfire/parallel/strategy.h"
#include "tests/support/expect_error.h"

namespace bonfire::train::config_rules_test {
namespace {

using Words = std::vector<std::string>;

std::string message(const Words& settings, const std::string& yaml = "") {
  try {
    parse_config(yaml, "a.yaml", settings);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no ConfigError";
}

TEST(ConfigRules, MilestonesMakeTheScheduleMultiStepUnlessAnotherIsGiven) {
  EXPECT_EQ(parse_config("milestones: [1, 2]\n", "a.yaml").schedule, "multi_step");
  EXPECT_EQ(default_config(Words{"milestones=[1, 2]"}).schedule, "multi_step");
  EXPECT_EQ(default_config(Words{"milestones=[]"}).schedule, "constant");
  EXPECT_EQ(message({"milestones=[1, 2]", "schedule=cosine"}),
            "[config] milestones has no effect without schedule: multi_step; add schedule: multi_step, or leave "
            "milestones out");
  EXPECT_NE(message({"milestones=[1, 2]", "schedule=constant"}).find("milestones has no effect"), std::string::npos);
}

TEST(ConfigRules, MultiStepNeedsMilestonesThatRise) {
  EXPECT_NE(message({"schedule=multi_step"}).find("schedule: multi_step needs milestones"), std::string::npos);
  EXPECT_NE(message({"schedule=multi_step", "milestones=[]"}).find("needs milestones"), std::string::npos);
  EXPECT_EQ(message({"milestones=[2, 1]"}),
            "[config] milestones are 2 and then 1, expected each to be later than the one before");
  EXPECT_NE(message({"milestones=[1, 1]"}).find("later than the one before"), std::string::npos);
  EXPECT_EQ(message({"schedule=multi_step", "milestones=1"}), "no ConfigError");
}

TEST(ConfigRules, ADecayOfOneWouldNeverFollowTheWeights) {
  EXPECT_EQ(message({"ema_decay=1"}), "[config] command line: ema_decay is 1, expected above 0, below 1");
  EXPECT_EQ(message({"ema_decay=0"}), "[config] command line: ema_decay is 0, expected above 0, below 1");
  EXPECT_EQ(message({"ema_decay=0.999"}), "no ConfigError");
}

// PyTorch's users write SGD with a momentum.
TEST(ConfigRules, AnOptimizerWithoutMomentumRefusesOne) {
  EXPECT_EQ(message({"optimizer=sgd", "momentum=0.9"}),
            "[config] command line: sgd has no momentum; choose optimizer: momentum, or leave momentum out");
  EXPECT_NE(message({"optimizer=adam"}, "momentum: 0.5\n").find("a.yaml:1: adam has no momentum"), std::string::npos);
  EXPECT_EQ(message({"optimizer=sgd", "momentum=0"}), "no ConfigError");
  EXPECT_EQ(message({"optimizer=sgd"}), "no ConfigError");
  // What a run writes down, it can read again.
  for (const char* optimizer : {"sgd", "adam", "momentum", "lars"}) {
    std::string text = to_yaml(default_config(Words{std::string("optimizer=") + optimizer}));
    EXPECT_EQ(to_yaml(parse_config(text, "a.yaml")), text);
  }
}

TEST(ConfigRules, KeysOfFeaturesThatAreNotThereYetAreNotCalledMisspelt) {
  for (const char* key :
       {"strategy.offload_optimizer=true", "strategy.mode=ps", "strategy.ps.mode=geo", "strategy.use_tf32=false"}) {
    std::string name = std::string(key).substr(0, std::string_view(key).find('='));
    EXPECT_EQ(message({key}), "[config] command line: " + name + " is not available yet; leave it out");
  }
  EXPECT_NE(message({"meshes=2"}).find("there is no key"), std::string::npos);
}

TEST(ConfigRules, WhatRanksShareOutIsAMapFromPathsToAxes) {
  const std::string yaml = "mesh: {tensor: 2}\ntensor: {split: {\"*.query.weight\": 0, qkv.weight: 0/3}}\n";
  const Config config = parse_config(yaml, "a.yaml", Words{"tensor.split.fc.weight=1"});
  ASSERT_EQ(config.tensor_split.size(), 3U);
  EXPECT_EQ(config.tensor_split.at("*.query.weight").axis, 0);
  EXPECT_EQ(config.tensor_split.at("qkv.weight").blocks, 3);
  EXPECT_EQ(config.tensor_split.at("fc.weight").axis, 1);
  EXPECT_EQ(to_yaml(parse_config(to_yaml(config), "b.yaml")), to_yaml(config));
  EXPECT_EQ(message({"mesh.tensor=2", "tensor.split.fc.weight=rows"}),
            "[config] command line: tensor.split.fc.weight is 'rows', expected an axis (0), or an axis and how many "
            "matrices are packed (0/3)");
  EXPECT_NE(message({"tensor.split.fc.weight=0"}).find("tensor.split has no effect without mesh.tensor above 1"),
            std::string::npos);
}

TEST(ConfigRules, WhatDoesNotGoWithATensorAxisIsRefusedWithAReason) {
  EXPECT_EQ(message({"mesh.tensor=2"}), "no ConfigError");
  EXPECT_NE(message({"mesh.tensor=2", "balance=auto"}).find("share the same ones; leave one of them out"),
            std::string::npos);
  EXPECT_NE(message({"mesh.tensor=2", "strategy.use_local_sgd=true"}).find("share the work of each layer; leave one"),
            std::string::npos);
}

TEST(ConfigRules, APipelineRefusesWhatDoesNotGoWithIt) {
  EXPECT_EQ(message({"mesh.pipeline=2"}), "no ConfigError");
  for (const char* beside : {"mesh.tensor=2", "ema_decay=0.9", "strategy.use_local_sgd=true",
                             "strategy.accumulate_steps=2", "strategy.use_amp=true"})
    EXPECT_EQ(message({"mesh.pipeline=2", beside}), "no ConfigError");
  EXPECT_NE(message({"mesh.pipeline=2", "balance=auto"})
                .find("gives slow ranks fewer samples, and ranks along mesh.pipeline have the same ones"),
            std::string::npos);
  EXPECT_EQ(
      message({"mesh.pipeline=3", "pipeline.cut=[fc]"}),
      "[config] pipeline.cut names 1 modules, and mesh.pipeline is 3: name the first module of each stage but the "
      "first, 2 in all");
  EXPECT_EQ(message({"mesh.pipeline=2", "pipeline.schedule=interleaved", "pipeline.cut=[conv2, fc1, fc2]"}),
            "no ConfigError");
  EXPECT_EQ(
      message({"mesh.pipeline=2", "pipeline.schedule=interleaved", "pipeline.cut=[fc]"}),
      "[config] pipeline.cut names 1 modules, and mesh.pipeline is 2, with 2 stages each: name the first module of "
      "each stage but the first, 3 in all");
  EXPECT_NE(message({"mesh.pipeline=2", "pipeline.schedule=interlaced"}).find("expected one of gpipe, 1f1b"),
            std::string::npos);
}

TEST(ConfigRules, AMeshNamesItsAxesOnce) {
  EXPECT_EQ(message({}, "mesh: {data: 2}\n"), "no ConfigError");
  EXPECT_EQ(message({"mesh.order=[data, tensor]"}),
            "[config] mesh.order is [data, tensor], expected data, pipeline and tensor, each once: [tensor, data, "
            "pipeline]");
  EXPECT_NE(message({"mesh.order=[data, tensor, rows]"}).find("mesh.order is 'rows', expected one of"),
            std::string::npos);
  EXPECT_NE(message({"mesh=2"}).find("it is a section"), std::string::npos);
  const MeshSizes sizes = mesh_of(default_config(Words{"mesh.data=3", "mesh.order=[data, pipeline, tensor]"}));
  EXPECT_EQ(to_string(sizes), "data 3 × pipeline 1 × tensor 1, order data, pipeline, tensor");
}

TEST(ConfigLimits, WhatThisMachineCannotDoIsRefusedWithTheLimit) {
  const std::string tasks = std::to_string(base::most_tasks()), more = std::to_string(base::most_tasks() + 1);
  EXPECT_GE(base::most_tasks(), 64);
  for (const char* key : {"num_workers", "num_gpus", "strategy.cpu_threads", "strategy.num_threads"}) {
    EXPECT_EQ(message({key + ("=" + tasks)}), "no ConfigError");
    EXPECT_EQ(message({key + ("=" + more)}),
              fmt::format("[config] {} is {}, expected at most {} on this machine", key, more, tasks));
    EXPECT_NE(message({key + std::string("=9000000000000000000")}).find("expected at most " + tasks),
              std::string::npos);
  }
  EXPECT_NE(message({"image_size=100000"}).find("image_size is 100000, expected from 1 to 65535"), std::string::npos);
  EXPECT_NE(message({"image_size=65535", "batch_size=4096"}).find("GB of this machine, expected at most "),
            std::string::npos);
  EXPECT_NE(message({"batch_size=9000000000000000000"}).find("GB of this machine"), std::string::npos);
  EXPECT_NE(message({"strategy.nccl_comm_num=65"}).find("expected from 1 to 64"), std::string::npos);
}

// A variable of the environment, while it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

constexpr const char *kMemory = "FLAGS_fuse_parameter_memory_size", *kGroups = "FLAGS_fuse_parameter_groups_size";

TEST(ConfigEnvironment, WinsOverAFileAndTheCommandLineOverIt) {
  const std::string yaml = "strategy: {fuse_parameter_memory_size: 1, fuse_parameter_groups_size: 2}\n";
  Variable memory(kMemory, "16"), groups(kGroups, "8");
  Config config = parse_config(yaml, "a.yaml");
  EXPECT_EQ(config.strategy.fuse_parameter_memory_size, 16.0);
  EXPECT_EQ(config.strategy.fuse_parameter_groups_size, 8);
  config = parse_config(yaml, "a.yaml", Words{"strategy.fuse_parameter_memory_size=3"});
  EXPECT_EQ(config.strategy.fuse_parameter_memory_size, 3.0);
  EXPECT_EQ(config.strategy.fuse_parameter_groups_size, 8);
}

TEST(ConfigEnvironment, IsHonouredByProgramsToo) {
  EXPECT_EQ(with_environment({}).fuse_parameter_groups_size, 50);
  {
    Variable memory(kMemory, "2.5"), groups(kGroups, "8");
    DistributedStrategy strategy = with_environment({.fuse_parameter_groups_size = 3});
    EXPECT_EQ(strategy.fuse_parameter_memory_size, 2.5);
    EXPECT_EQ(strategy.fuse_parameter_groups_size, 8);
  }
  Variable memory(kMemory, "auto");
  EXPECT_FALSE(with_environment({.fuse_parameter_memory_size = 3}).fuse_parameter_memory_size.has_value());
}

TEST(ConfigEnvironment, AValueThatCannotBeIsAnErrorThatNamesTheVariable) {
  for (const char* value : {"many", "0", "-1", "nan", "3MB"}) {
    Variable memory(kMemory, value);
    EXPECT_NE(message({}).find("FLAGS_fuse_parameter_memory_size in the environment"), std::string::npos) << value;
    EXPECT_ERROR(with_environment({}), ConfigError, fmt::format("{} is '{}'", kMemory, value));
  }
  Variable groups(kGroups, "2.5");
  EXPECT_ERROR(with_environment({}), ConfigError, "expected a whole number of layers, at least 1");
}

}  // namespace
}  // namespace bonfire::train::config_rules_test
