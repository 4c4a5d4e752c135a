// Stages of a pipeline whose layers ranks along the tensor axis share: they train as one device does that adds up the
// gradients of as many micro-batches, and each rank has memory for its part of its stage alone.
//
//   BONFIRE_MESHES=all test_parallel --gtest_filter=StageParts.*     every model, schedule, mesh and type: 2 minutes
//   BONFIRE_SEED=N test_parallel --gtest_filter=StageParts.RandomNets*    repeats one net
#include <cstdlib>
#include <random>

#include "tests/parallel/in_stages.h"
#include "tests/support/pinned_kernels.h"

namespace bonfire::stage_parts_test {
namespace {

using namespace in_stages;
using Cut = std::vector<std::string>;

struct Meshes {
  std::vector<MeshSizes> sizes = {{.pipeline = 2, .tensor = 2}};
  std::vector<ScheduleKind> schedules = {std::begin(kSchedules), std::end(kSchedules)};
  std::vector<DType> types = {DType::f64};
};

// In those; of all meshes in every one, in each schedule and type.
void expect_as_on_one_device(const Subject& subject, Training run, Meshes meshes = {}) {
  const testing::PinnedKernels pinned;
  if (all_meshes())
    meshes = {.sizes = {{.pipeline = 2, .tensor = 2}, {.data = 2, .pipeline = 2, .tensor = 2}},
              .types = {DType::f32, DType::f64}};
  for (DType dtype : meshes.types)
    for (const MeshSizes& sizes : meshes.sizes)
      for (ScheduleKind schedule : meshes.schedules) {
        run.dtype = dtype;
        run.schedule = schedule;
        run.replicas = std::max(1, sizes.data);
        const std::string what = fmt::format("{}, {}, {}", name_of(schedule), name_of(dtype), to_string(sizes));
        SCOPED_TRACE(what);
        expect_same_as_one_device(subject, run, sizes, what);
      }
}

TEST(StageParts, OfAVggTrainAsOnOneDevice) {
  expect_as_on_one_device(small_vgg(), {.clip = 0.5, .cut = Cut{"features.4"}});
  expect_as_on_one_device(
      small_vgg(), {.clip = 0.5, .cut = Cut{"classifier"}},
      {.sizes = {{.data = 2, .pipeline = 2, .tensor = 2}}, .schedules = {ScheduleKind::zero_bubble}});
}

TEST(StageParts, OfAResNetTrainAsOnOneDevice) {
  expect_as_on_one_device(small_resnet(), {.micro_batches = 2, .batches = {4, 3}, .clip = 0.5, .cut = Cut{"layer2"}},
                          {.schedules = {ScheduleKind::one_f_one_b}});
}

Subject bert(int64_t vocabulary, int64_t heads) {
  return {
      [=] {
        const models::BertForMaskedLM model(
            {.vocabulary = vocabulary, .hidden = 8, .layers = 2, .heads = heads, .intermediate = 12, .positions = 6});
        return next_token_of(model, vocabulary, [model](const Tensor& tokens) {
          return model(tokens, models::BertInputs{.attention_mask = not_equal(tokens, 1).to(DType::i64)});
        });
      },
      {.input = {6}, .symbols = vocabulary, .classes = vocabulary, .labels_rows = true}};
}

// Both have half of the table of words each in the first stage and in the last.
TEST(StageParts, OfABertWhoseWordsAreInTwoStagesTrainAsOnOneDevice) {
  expect_as_on_one_device(bert(12, 2), {.clip = 0.3, .cut = Cut{"bert.encoder.layer.1"}});
  // That does not divide: all ranks have all of it.
  expect_as_on_one_device(bert(11, 2), {.batches = {8, 6}, .clip = 0.3, .cut = Cut{"bert.encoder.layer.1"}},
                          {.schedules = {ScheduleKind::one_f_one_b}});
}

TEST(StageParts, OfAGpt2TrainAsOnOneDevice) {
  expect_as_on_one_device(small_gpt2(), {.clip = 0.3, .cut = Cut{"transformer.h.1"}},
                          {.schedules = {ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble}});
}

TEST(StageParts, OfATwoHeadedNetTrainAsOnOneDevice) {
  expect_as_on_one_device(two_headed(), {.clip = 0.5, .cut = Cut{"conv3"}},
                          {.sizes = {{.data = 2, .pipeline = 2, .tensor = 2}},
                           .schedules = {ScheduleKind::one_f_one_b},
                           .types = {DType::f32}});
}

TEST(StageParts, HaveMeansOfTheirWeightsAndAddUpBatches) {
  expect_as_on_one_device(bert(12, 2),
                          {.batches = {8, 8, 6, 8},
                           .clip = 0.3,
                           .cut = Cut{"bert.encoder.layer.1"},
                           .adam = true,
                           .accumulate = 2,
                           .mean = 0.9},
                          {.schedules = {ScheduleKind::zero_bubble}});
}

TEST(StageParts, OfReplicasShareBatchStatistics) {
  expect_as_on_one_device(
      two_headed(), {.batches = {8, 6}, .cut = Cut{"conv2"}, .sync_batch_norm = true},
      {.sizes = {{.data = 2, .pipeline = 2, .tensor = 2}}, .schedules = {ScheduleKind::one_f_one_b}});
}

// Values are rounded between programs, and sums of parts before they are added.
TEST(StageParts, InMixedPrecisionDifferByItsRoundingAlone) {
  const testing::PinnedKernels pinned;
  const Training run{.batches = {8, 6}, .clip = 0.3, .cut = Cut{"bert.encoder.layer.1"}, .mixed_precision = true};
  const Outcome expected = on_one_device(bert(12, 2), run);
  const std::vector<Outcome> found = on_stages(bert(12, 2), run, {.pipeline = 2, .tensor = 2});
  for (const Outcome& one : found) expect_near(one, expected, "bf16", 0.02);
  expect_all(found, expected, "bf16");
}

TEST(StageParts, InThreeStagesOfFourRanksTrainAsOnOneDevice) {
  if (!all_meshes()) GTEST_SKIP() << "BONFIRE_MESHES=all runs it";
  const testing::PinnedKernels pinned;
  for (ScheduleKind schedule : kSchedules)
    expect_same_as_one_device(
        bert(12, 4),
        {.clip = 0.3, .schedule = schedule, .cut = Cut{"bert.encoder.layer.1", "cls"}, .dtype = DType::f64},
        {.pipeline = 3, .tensor = 4}, name_of(schedule));
}

// What a layer of the second stage wants whole is wanted by the first stage, too, which comes to it later in the trace.
class TwoReaders : public nn::Callable<TwoReaders> {
 public:
  TwoReaders()
      : Callable("TwoReaders"),
        words_(register_module("words", nn::Embedding({.rows = 12, .size = 8}))),
        first_(register_module("first", nn::Linear({.in = 8, .out = 8}))),
        norm_(register_module("norm", nn::LayerNorm({.shape = {8}}))),
        head_(register_module("head", nn::Linear({.in = 8, .out = 12}))) {}
  Tensor forward(const Tensor& tokens) const {
    const Tensor x = tanh(first_(words_(tokens))), y = norm_(x);
    return head_(y + softmax(x, 2));
  }

 private:
  nn::Embedding words_;
  nn::Linear first_;
  nn::LayerNorm norm_;
  nn::Linear head_;
};

TEST(StageParts, AreGatheredWhereTheFirstStageThatReadsThemIs) {
  const Subject subject{[] {
                          const TwoReaders net;
                          return next_token_of(net, 12, [net](const Tensor& x) { return net(x); });
                        },
                        {.input = {4}, .symbols = 12, .classes = 12, .labels_rows = true},
                        {{"first.*", 0}}};
  expect_as_on_one_device(subject, {.batches = {8, 6}, .cut = Cut{"norm"}});
}

// --- random nets -----------------------------------------------------------------------------------------------------

// Blocks in a row over [N, T, F], each of which may read what any block before it has made, and at the end the words
// that the text was looked up in.
class RandomNet : public nn::Callable<RandomNet> {
 public:
  static constexpr int64_t kFeatures = 8, kWords = 12;

  RandomNet(std::mt19937& random, std::string& text)
      : Callable("RandomNet"), words_(register_module("words", nn::Embedding({.rows = kWords, .size = kFeatures}))) {
    for (size_t i = 0, count = 3 + random() % 4; i < count; ++i) {
      Block block{.kind = static_cast<Kind>(random() % kKinds), .reads = static_cast<int>(random() % (i + 2)) - 1};
      text +=
          fmt::format(" {}{}", static_cast<int>(block.kind), block.reads < 0 ? "" : fmt::format("+{}", block.reads));
      block.parts = parts_of(block.kind);
      for (size_t p = 0; p < block.parts.size(); ++p)
        block.parts[p] = register_module(fmt::format("b{}p{}", i, p), block.parts[p]);
      blocks_.push_back(std::move(block));
    }
    is_tied_ = random() % 2 == 0;
    if (is_tied_) text += " tied";
    head_.emplace(is_tied_ ? nn::Linear(words_.weight, {}) : nn::Linear({.in = kFeatures, .out = kWords}));
    *head_ = register_module("head", *head_);
  }

  Tensor forward(const Tensor& tokens) const {
    std::vector<Tensor> made{words_(tokens)};
    for (const Block& block : blocks_) {
      const Tensor x = made.back();
      made.push_back(apply(block, x));
      if (block.reads >= 0) made.back() = made.back() + made[static_cast<size_t>(block.reads)] * 0.5;
    }
    return (*head_)(made.back());
  }

  // Of two stages of one rank neither may read what the other makes.
  void read_from_other_ranks(const Cut& firsts, int ranks) {
    std::vector<int> stages{0};  // of what is made
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const bool begins = std::find(firsts.begin(), firsts.end(), fmt::format("b{}p0", i)) != firsts.end();
      stages.push_back(stages.back() + (begins ? 1 : 0));
      int& reads = blocks_[i].reads;
      const int apart = reads < 0 ? 0 : stages.back() - stages[static_cast<size_t>(reads)];
      if (apart > 0 && apart % ranks == 0) reads = -1;
    }
  }

  // A module that begins each further stage.
  Cut cut(std::mt19937& random, int stages) const {
    std::set<size_t> begins;
    while (begins.size() + 1 < static_cast<size_t>(stages)) begins.insert(random() % blocks_.size());
    Cut firsts;
    for (size_t i : begins) firsts.push_back(fmt::format("b{}p0", i));
    return firsts;
  }

 private:
  enum class Kind : uint8_t { two_layers, norm, dropout, layer, gates };
  static constexpr size_t kKinds = 5;
  struct Block {
    Kind kind;
    int reads;  // of what blocks have made; -1: nothing more
    std::vector<nn::AnyModule> parts = {};
  };

  static std::vector<nn::AnyModule> parts_of(Kind kind) {
    const nn::Linear wide({.in = kFeatures, .out = 2 * kFeatures}), narrow({.in = 2 * kFeatures, .out = kFeatures}),
        square({.in = kFeatures, .out = kFeatures});
    switch (kind) {
      case Kind::two_layers: return {wide, nn::GELU(), narrow};
      case Kind::norm: return {nn::LayerNorm({.shape = {kFeatures}})};
      case Kind::dropout: return {nn::Dropout(0.2)};
      case Kind::layer: return {square, nn::Tanh()};
      case Kind::gates: return {wide, narrow};
    }
    return {};
  }

  static Tensor apply(const Block& block, const Tensor& x) {
    Tensor result = x;
    for (const nn::AnyModule& part : block.parts) result = part(result);
    return block.kind == Kind::gates ? sigmoid(result) * x : result;
  }

  nn::Embedding words_;
  std::vector<Block> blocks_;
  bool is_tied_ = false;
  std::optional<nn::Linear> head_;
};

void expect_random_net_as_on_one_device(uint64_t seed) {
  std::mt19937 random(static_cast<std::mt19937::result_type>(seed));
  std::string text;
  const auto make = [&](std::mt19937 again, std::string& words) { return RandomNet(again, words); };
  const std::mt19937 of_net = random;
  const RandomNet net = make(of_net, text);
  random.discard(100);
  const int chunks = random() % 4 == 0 ? 2 : 1, ranks = chunks == 2 ? 2 : 2 + static_cast<int>(random() % 2);
  Training run{.micro_batches = 3,
               .batches = {6, 5},
               .clip = 0.1,
               .schedule = chunks == 2 ? ScheduleKind::interleaved : kSchedules[random() % std::size(kSchedules)],
               .chunks = chunks,
               .cut = net.cut(random, ranks * chunks),
               .dtype = DType::f64};
  std::vector<nn::Split> split{{"words.weight", static_cast<int>(random() % 2)}};
  std::set<const VariableState*> seen{&net.state_dict()[0].variable.state()};
  for (const auto& [name, variable] : net.state_dict()) {
    const auto axis = static_cast<int>(random() % 3);
    if (!seen.insert(&variable.state()).second || axis >= variable.shape().rank()) continue;
    split.push_back({name, axis});
    text += fmt::format(" {}/{}", name, axis);
  }
  SCOPED_TRACE(
      fmt::format("BONFIRE_SEED={}: {} stages, {}, blocks{}", seed, ranks * chunks, name_of(run.schedule), text));
  const Subject subject{[&, of_net] {
                          std::string unused;
                          RandomNet one = make(of_net, unused);
                          one.read_from_other_ranks(*run.cut, ranks);
                          return next_token_of(one, RandomNet::kWords, [one](const Tensor& x) { return one(x); });
                        },
                        {.input = {4}, .symbols = RandomNet::kWords, .classes = RandomNet::kWords, .labels_rows = true},
                        split};
  expect_same_as_one_device(subject, run, {.pipeline = ranks, .tensor = 2}, fmt::format("net {}", seed));
}

TEST(StageParts, RandomNetsTrainAsOnOneDevice) {
  const testing::PinnedKernels pinned;
  const char* given = std::getenv("BONFIRE_SEED");
  const uint64_t first = given == nullptr ? 1 : std::stoull(given);
  const uint64_t count = given != nullptr ? 1 : all_meshes() ? 200 : 12;
  for (uint64_t seed = first; seed < first + count && !::testing::Test::HasFailure(); ++seed)
    expect_random_net_as_on_one_device(seed);
}

// --- what is refused -------------------------------------------------------------------------------------------------

std::vector<std::string> errors_with(const std::function<void(const nn::Module&)>& share_out, uint64_t seed_of_odd) {
  return errors_on_ranks(4, {.pipeline = 2, .tensor = 2}, [&](Device device) {
    manual_seed(fleet::rank() % 2 == 1 ? seed_of_odd : 1);
    const Subject subject = small_vgg();
    const Net net = subject.make();
    net.module.to(device);
    share_out(net.module);
    optim::Optimizer optimizer = optim::SGD(net.module.parameters(), {.lr = 0.1});
    pipeline::Pipeline stages(net.module, optimizer, net.forward, {.micro_batches = 2, .cut = {{"classifier"}}});
    stages.train(batch_of(subject.data, 4, 1, device));
  });
}

TEST(StageParts, OfAModelThatNobodyHasSharedOutAreRefused) {
  for (const std::string& error : errors_with([](const nn::Module&) {}, 1))
    EXPECT_NE(error.find("call fleet::share_out_layers(model) before the optimizer is made"), std::string::npos)
        << error;
}

TEST(StageParts, OfRanksWithOtherFirstValuesAreRefused) {
  const std::vector<nn::Split> split = small_vgg().split;
  auto share_out = [&](const nn::Module& model) { fleet::share_out_layers(model, {.split = split}); };
  for (const std::string& error : errors_with(share_out, 1)) EXPECT_EQ(error, "");
  for (const std::string& error : errors_with(share_out, 2))
    EXPECT_NE(error.find("checksum of the first values of features.0.weight is "), std::string::npos) << error;
}

}  // namespace
}  // namespace bonfire::stage_parts_test
