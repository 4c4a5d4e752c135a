#include "bonfire/runtime/image_layouts.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "bonfire/runtime/layout.h"
#include "bonfire/runtime/tuning.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::runtime::image_layouts_test {
namespace {

OutputSpecs same_spec(const InferContext& context) { return {context.input(0)}; }

void wait(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

// One candidate per layout; attribute `rows` and `last` say how many milliseconds they take.
std::vector<Candidate> candidates_by_layout(const KernelRequest& request) {
  std::vector<Candidate> list;
  for (bool last : {false, true}) {
    int64_t milliseconds = request.node.attributes.integer(last ? "last" : "rows");
    list.push_back(make_candidate(request, last ? "last" : "rows",
                                  [milliseconds](const Run&) { wait(static_cast<int>(milliseconds)); }));
    if (last) list[1].input_layouts[0] = list[1].output_layouts[0] = channels_last();
  }
  return list;
}

const Op& layer = register_op({.name = "layer_for_test", .infer = same_spec});
const bool registered = register_kernel("layer_for_test", DeviceType::cpu, candidates_by_layout);

class ImageLayouts : public ::testing::Test {
 protected:
  ImageLayouts() {
    setenv("BONFIRE_CACHE", folder_.path().c_str(), 1);
    setenv("BONFIRE_TUNE", "full", 1);
    reload_tuning();
    feed_ = {graph_.add_input(LeafKind::feed, {{4, 16, 16, 16}, DType::f32, {}}), 0};
    feed_.node->leaf_position = 0;
  }
  ~ImageLayouts() override {
    unsetenv("BONFIRE_CACHE");
    setenv("BONFIRE_TUNE", "off", 1);
    reload_tuning();
  }

  GraphValue add(GraphValue input, int rows, int last) {
    return {graph_.add(layer, {input}, {{"rows", rows}, {"last", last}}), 0};
  }

  // The candidates in order, with "reorder" where one was put in.
  std::vector<std::string> choose() {
    Choices choices = choose_candidates(graph_, given_, false);
    output_layouts_ = choices.output_layouts;
    std::vector<std::string> names;
    for (const GraphNode& node : graph_.nodes())
      if (!node.is_input())
        names.push_back(node.name() == "reorder" ? "reorder" : choices.of_node.at(&node).candidate.name);
    return names;
  }

  bonfire::testing::ScratchFolder folder_;
  Graph graph_;
  GraphValue feed_;
  GivenLayouts given_{.leaves = {{{}, true}}};
  std::vector<Layout> output_layouts_;
};

using Names = std::vector<std::string>;

TEST_F(ImageLayouts, ANodeWithoutAPreferenceFollowsItsNeighbours) {
  graph_.set_outputs({add(add(add(feed_, 40, 0), 0, 0), 40, 0)});
  EXPECT_EQ(choose(), (Names{"reorder", "last", "last", "last", "reorder"}));
}

// Between the programs of a stage.
TEST_F(ImageLayouts, WhatMayLieAnyhowIsNotReordered) {
  given_.outputs = {std::nullopt};
  graph_.set_outputs({add(add(feed_, 40, 0), 40, 0)});
  EXPECT_EQ(choose(), (Names{"reorder", "last", "last"}));
  EXPECT_EQ(output_layouts_, std::vector<Layout>{channels_last()});
}

TEST_F(ImageLayouts, WhatComesSoIsNotReordered) {
  given_.leaves = {{channels_last(), true}};
  graph_.set_outputs({add(add(feed_, 40, 0), 40, 0)});
  EXPECT_EQ(choose(), (Names{"last", "last", "reorder"}));
  EXPECT_EQ(output_layouts_, std::vector<Layout>{Layout{}});
}

TEST_F(ImageLayouts, WhatMustLieSoIsReordered) {
  given_.outputs = {channels_last()};
  graph_.set_outputs({add(feed_, 0, 40)});
  EXPECT_EQ(choose(), (Names{"rows", "reorder"}));
  EXPECT_EQ(output_layouts_, std::vector<Layout>{channels_last()});
}

TEST_F(ImageLayouts, AnImageIsReorderedOnceForAllItsReaders) {
  graph_.set_outputs({add(feed_, 40, 0), add(feed_, 41, 0)});
  Names names = choose();
  EXPECT_EQ(std::count(names.begin(), names.end(), "last"), 2);
  EXPECT_EQ(std::count(names.begin(), names.end(), "reorder"), 3);  // one in, two out
}

TEST_F(ImageLayouts, WithoutTimesNothingIsReordered) {
  setenv("BONFIRE_TUNE", "off", 1);
  graph_.set_outputs({add(add(feed_, 40, 0), 40, 0)});
  EXPECT_EQ(choose(), (Names{"rows", "rows"}));
}

TEST_F(ImageLayouts, ParametersAndTheirGradientsAreNoImages) {
  GraphNode* weight = graph_.add_input(LeafKind::variable, {{4, 8, 3, 3}, DType::f32, {}});
  GraphValue cast{graph_.add(find_op("cast"), {{weight, 0}}, {{"dtype", DType::bf16}}), 0};
  GraphValue gradient{
      graph_.add(find_op("negative"), {{graph_.add_input(LeafKind::feed, {{4, 8, 3, 3}, DType::f32, {}}), 0}}), 0};
  GraphValue image = add(feed_, 1, 1);
  graph_.assign(weight, gradient);
  graph_.set_outputs({cast, image});
  const ParameterValues parameters(graph_);
  EXPECT_TRUE(parameters.contains({weight, 0}));
  EXPECT_TRUE(parameters.contains(cast));
  EXPECT_TRUE(parameters.contains(gradient));
  EXPECT_TRUE(parameters.is_image(feed_));
  EXPECT_TRUE(parameters.is_image(image));
  EXPECT_FALSE(parameters.is_image(cast));
}

}  // namespace
}  // namespace bonfire::runtime::image_layouts_test
