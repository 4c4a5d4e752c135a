#include "bonfire/runtime/tuning.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "bonfire/backend/cpu/device/threads.h"
#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/runtime/build_stamp.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::runtime::tuning_test {
namespace {

OutputSpecs same_spec(const InferContext& context) { return {context.input(0)}; }
const Op& choice_op = register_op({.name = "choice_for_test", .infer = same_spec});

// Busy, not asleep: processor time may be what counts.
void work_for(std::chrono::milliseconds span) {
  auto end = std::chrono::steady_clock::now() + span;
  while (std::chrono::steady_clock::now() < end) {
  }
}

std::atomic<int> slow_runs{0};

// Two candidates that differ only in how long they take.
std::vector<Candidate> two_candidates(const KernelRequest& request) {
  std::vector<Candidate> list;
  list.push_back(make_candidate(request, "slow", [](const Run&) {
    ++slow_runs;
    work_for(std::chrono::milliseconds(5));
  }));
  list.push_back(make_candidate(request, "quick", [](const Run&) {}));
  return list;
}
const bool registered = register_kernel("choice_for_test", DeviceType::cpu, two_candidates);

const Op& layouts_op = register_op({.name = "layouts_for_test", .infer = same_spec});

// One algorithm in two layouts, and another one that is far quicker.
std::vector<Candidate> two_layouts(const KernelRequest& request) {
  std::vector<Candidate> list = two_candidates(request);
  Candidate other = two_candidates(request)[0];
  list[0].name = "slow:nchw";
  other.name = "slow:nhwc";
  list.push_back(std::move(other));
  return list;
}
const bool layouts_registered = register_kernel("layouts_for_test", DeviceType::cpu, two_layouts);

const Op& three_op = register_op({.name = "three_for_test", .infer = same_spec});

// Three algorithms. The last is measured first, and then the slow one.
std::vector<Candidate> three_algorithms(const KernelRequest& request) {
  std::vector<Candidate> list = two_candidates(request);
  std::swap(list[0], list[1]);
  list.push_back(make_candidate(request, "medium", [](const Run&) { work_for(std::chrono::milliseconds(1)); }));
  return list;
}
const bool three_registered = register_kernel("three_for_test", DeviceType::cpu, three_algorithms);

class Tuning : public ::testing::Test {
 protected:
  Tuning() {
    setenv("BONFIRE_CACHE", folder_.path().c_str(), 1);
    forget();
    node_ = graph_.add(choice_op, {{graph_.add_input(LeafKind::feed, {{64}, DType::f32, {}}), 0}});
  }
  ~Tuning() override {
    forget();
    unsetenv("BONFIRE_CACHE");
    setenv("BONFIRE_TUNE", "off", 1);
  }

  static void forget() { set_tuning_record(R"({"times": {}, "build": ")" + build_stamp() + R"("})"); }

  std::string pick(const char* mode, std::vector<double> reorder_nanoseconds = {0, 0}) {
    setenv("BONFIRE_TUNE", mode, 1);
    const Layout arriving[] = {{}};
    std::vector<Candidate> candidates = candidates_for({*node_, arriving});
    return candidates[pick_candidate(*node_, candidates, reorder_nanoseconds)].name;
  }

  bonfire::testing::ScratchFolder folder_;
  Graph graph_;
  GraphNode* node_;
};

TEST_F(Tuning, FullTimesTheCandidatesAndTakesTheQuickest) { EXPECT_EQ(pick("full"), "quick"); }

TEST_F(Tuning, OffTakesTheFewestReorders) {
  EXPECT_EQ(pick("off"), "slow");
  EXPECT_EQ(pick("off", {100, 0}), "quick");
}

TEST_F(Tuning, ReordersCountAgainstAQuickCandidate) { EXPECT_EQ(pick("full", {0, 1e9}), "slow"); }

TEST_F(Tuning, CachedMeasuresNothing) {
  EXPECT_EQ(pick("cached"), "slow");
  EXPECT_EQ(tuning_record().find("quick"), std::string::npos);
}

TEST_F(Tuning, TheRecordIsWrittenAndServesLater) {
  pick("full");
  save_tuning();
  std::vector<std::byte> bytes = base::read_file(folder_.path() / "tuning.json");
  forget();
  EXPECT_EQ(pick("cached"), "slow");
  set_tuning_record(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  EXPECT_EQ(pick("cached"), "quick");
}

// Held up until it is told to go on, for 5 s at most.
std::atomic<bool> go_on{false};
void wait_to_go_on(const Run&) {
  auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (!go_on && std::chrono::steady_clock::now() < end) std::this_thread::yield();
}
const Op& patient_op = register_op({.name = "patient_for_test", .infer = same_spec});

// As when one of two ranks in this process measures while the other must come to a collective.
TEST_F(Tuning, ThreadsLookTimesUpWhileAnotherMeasures) {
  pick("full");
  const GraphNode* node = graph_.add(patient_op, {{graph_.add_input(LeafKind::feed, {{64}, DType::f32, {}}), 0}});
  const Layout arriving[] = {{}};
  const std::vector<Candidate> known = candidates_for({*node_, arriving});
  std::vector<Candidate> patient{make_candidate({*node, arriving}, "patient", wait_to_go_on)};
  std::thread measuring([&] { candidate_times(*node, patient); });
  auto seen = [](const char* text) { return tuning_record().find(text) != std::string::npos; };
  while (!seen("patient_for_test")) std::this_thread::yield();  // it has begun
  EXPECT_EQ(candidate_times(*node_, known).size(), 2U);
  EXPECT_FALSE(seen("\"patient\":"));
  go_on = true;
  measuring.join();
  EXPECT_TRUE(seen("\"patient\":"));
}

// Rows of equal operands have products that no training has (a softmax of them is made of denormal numbers).
TEST_F(Tuning, CandidatesAreTimedOnOperandsThatDiffer) {
  setenv("BONFIRE_TUNE", "full", 1);
  auto feed = [&] { return GraphValue{graph_.add_input(LeafKind::feed, {{64}, DType::f32, {}}), 0}; };
  const GraphNode* node = graph_.add(choice_op, {feed(), feed()});
  int equal = -1, zeros = 0;
  auto look = [&](const bonfire::Run& run) {
    equal = zeros = 0;
    for (int64_t i = 0; i < 64; ++i) {
      equal += run.input<float>(0)[i] == run.input<float>(1)[i] ? 1 : 0;
      zeros += run.input<float>(0)[i] == 0 ? 1 : 0;
    }
  };
  const Layout arriving[] = {{}, {}};
  candidate_times(*node, {make_candidate({*node, arriving}, "looks", look)});
  EXPECT_GE(equal, 0) << "it was not run";
  EXPECT_LT(equal, 4);
  EXPECT_LT(zeros, 4);
}

TEST_F(Tuning, TheRecordOfAnotherBuildIsMeasuredAnew) {
  pick("full");
  save_tuning();
  reload_tuning();
  EXPECT_EQ(pick("cached"), "quick");
  std::string path = folder_.path() / "tuning.json";
  std::vector<std::byte> bytes = base::read_file(path);
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  ASSERT_FALSE(build_stamp().empty());
  text.replace(text.find(build_stamp()), build_stamp().size(), "another");
  const std::span<const std::byte> chunks[] = {std::as_bytes(std::span<const char>(text))};
  base::write_file_atomically(path, chunks);
  reload_tuning();
  EXPECT_EQ(pick("cached"), "slow");
}

// As a checkpoint may hold it.
TEST_F(Tuning, TheRecordOfAnotherBuildIsNeitherTakenNorSaved) {
  pick("full");
  std::string text = tuning_record();
  forget();
  EXPECT_TRUE(set_tuning_record(text));
  EXPECT_EQ(pick("cached"), "quick");
  forget();
  text.replace(text.find(build_stamp()), build_stamp().size(), "another");
  EXPECT_FALSE(set_tuning_record(text));
  EXPECT_EQ(pick("cached"), "slow");
  EXPECT_FALSE(set_tuning_record(R"({"times": {"a": {"b": 1}}})"));  // of nobody knows which
  const Layout arriving[] = {{}};
  GraphNode* larger = graph_.add(choice_op, {{graph_.add_input(LeafKind::feed, {{66}, DType::f32, {}}), 0}});
  setenv("BONFIRE_TUNE", "full", 1);
  candidate_times(*larger, candidates_for({*larger, arriving}));
  save_tuning();
  reload_tuning();
  EXPECT_EQ(tuning_record().find("[64]"), std::string::npos);
  EXPECT_NE(tuning_record().find("[66]"), std::string::npos);
}

// What one rank took from the file, the others would not have.
TEST_F(Tuning, SavingTakesNothingFromTheFile) {
  pick("full");
  save_tuning();  // stands for another process
  forget();
  const Layout arriving[] = {{}};
  GraphNode* larger = graph_.add(choice_op, {{graph_.add_input(LeafKind::feed, {{67}, DType::f32, {}}), 0}});
  candidate_times(*larger, candidates_for({*larger, arriving}));
  save_tuning();
  EXPECT_EQ(pick("cached"), "slow");
}

// As devices of one process that make the same step do.
TEST_F(Tuning, ThreadsShareTheWorkOut) {
  setenv("BONFIRE_TUNE", "full", 1);
  const Layout arriving[] = {{}};
  std::atomic<int> built{0};
  std::vector<TimedNode> nodes;
  for (int64_t i = 0; i < 8; ++i) {
    GraphNode* node = graph_.add(choice_op, {{graph_.add_input(LeafKind::feed, {{100 + i}, DType::f32, {}}), 0}});
    std::vector<Candidate> candidates = candidates_for({*node, arriving});
    for (Candidate& candidate : candidates)
      candidate.build = [&built, build = candidate.build] {
        ++built;
        return build();
      };
    nodes.push_back({node, std::move(candidates)});
  }
  std::vector<std::vector<double>> times(3);
  std::vector<std::thread> threads;
  for (auto& own : times)
    threads.emplace_back([&] {
      share_out_timing(nodes);
      for (const auto& [node, candidates] : nodes)
        for (double one : candidate_times(*node, candidates)) own.push_back(one);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(times[0].size(), 16U);
  EXPECT_EQ(times[1], times[0]);
  EXPECT_EQ(times[2], times[0]);
  EXPECT_EQ(built, 16);
}

TEST_F(Tuning, SavingKeepsWhatAnotherProcessMeasured) {
  pick("full");
  save_tuning();  // stands for the other process
  forget();
  const Layout arriving[] = {{}};
  GraphNode* larger = graph_.add(choice_op, {{graph_.add_input(LeafKind::feed, {{65}, DType::f32, {}}), 0}});
  candidate_times(*larger, candidates_for({*larger, arriving}));
  save_tuning();
  reload_tuning();
  EXPECT_EQ(pick("cached"), "quick");
}

TEST_F(Tuning, ACandidateThatIsFarBehindIsRunOnce) {
  slow_runs = 0;
  pick("full");
  EXPECT_GE(slow_runs, 1);
  EXPECT_LE(slow_runs, 5);  // more than once only where the machine was busy
  EXPECT_GT(tuning_seconds(), 0);
}

TEST_F(Tuning, AnAlgorithmThatIsFarBehindInOneLayoutIsNotTriedInAnother) {
  setenv("BONFIRE_TUNE", "full", 1);
  const Layout arriving[] = {{}};
  GraphNode* node = graph_.add(layouts_op, {{graph_.add_input(LeafKind::feed, {{64}, DType::f32, {}}), 0}});
  std::vector<double> times = candidate_times(*node, candidates_for({*node, arriving}));
  EXPECT_EQ(times[0], times[2]);
  EXPECT_GT(times[0], 1e6);
}

TEST_F(Tuning, ALongKernelThatWasDisturbedOnceGetsAnotherChance) {
  setenv("BONFIRE_TUNE", "full", 1);
  const Layout arriving[] = {{}};
  GraphNode* node = graph_.add(choice_op, {{graph_.add_input(LeafKind::feed, {{96}, DType::f32, {}}), 0}});
  std::atomic<int> runs{0};
  const std::vector<Candidate> candidates = {
      make_candidate({*node, arriving}, "steady", [](const bonfire::Run&) { work_for(std::chrono::milliseconds(50)); }),
      make_candidate({*node, arriving}, "shared",
                     [&](const bonfire::Run&) { work_for(std::chrono::milliseconds(++runs == 1 ? 100 : 20)); })};
  EXPECT_EQ(candidates[pick_candidate(*node, candidates, std::vector<double>(2))].name, "shared");
}

TEST_F(Tuning, KeysNameThreadsAndProcessor) {
  pick("full");
  EXPECT_NE(tuning_record().find("cpu/" + std::to_string(cpu::cpu_threads()) + processor_name()), std::string::npos);
}

// A home that cannot be searched, as that of another user, is no reason not to train.
TEST_F(Tuning, WhereNobodyMayLookIsMeasuredAgain) {
  std::filesystem::create_symlink("there", folder_ / "back");
  std::filesystem::create_symlink("back", folder_ / "there");
  setenv("BONFIRE_CACHE", (folder_ / "back").c_str(), 1);
  reload_tuning();
  EXPECT_EQ(pick("full"), "quick");
  EXPECT_NO_THROW(save_tuning());
}

TEST_F(Tuning, BadInputIsNamed) {
  EXPECT_ERROR(pick("sometimes"), ConfigError, "off, cached or full");
  EXPECT_ERROR(set_tuning_record("[1, 2"), DataError, "not a tuning record");
}

TEST_F(Tuning, AnAlgorithmIsMeasuredHoweverSlowAnotherIs) {
  setenv("BONFIRE_TUNE", "full", 1);
  const GraphNode* node = graph_.add(three_op, {{graph_.add_input(LeafKind::feed, {{64}, DType::f32, {}}), 0}});
  const Layout arriving[] = {{}};
  const std::vector<Candidate> candidates = candidates_for({*node, arriving});
  const std::vector<double> times = candidate_times(*node, candidates);
  EXPECT_EQ(candidates[pick_candidate(*node, candidates, std::vector<double>(3))].name, "quick");
  EXPECT_LT(times[0], times[2]);
  EXPECT_LT(times[2], times[1]);
}

}  // namespace
}  // namespace bonfire::runtime::tuning_test
