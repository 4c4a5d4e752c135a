// Models in stages, each in every schedule, with a last batch that does not fill its micro-batches: in f32 as one
// device but for rounding, and in f64, where rounding is out of the way, to 1e-9.
#include "tests/parallel/in_stages.h"

namespace bonfire::pipeline_models_test {
namespace {

using namespace in_stages;
using Cut = std::vector<std::string>;

void expect_same_in_every_schedule(const Subject& subject, const Training& run, int stages) {
  for (DType dtype : {DType::f32, DType::f64}) {
    Training one = run;
    one.dtype = dtype;
    const Outcome expected = on_one_device(subject, one);
    for (ScheduleKind schedule : kSchedules) {
      one.schedule = schedule;
      const std::string what = fmt::format("{} in {}", name_of(schedule), name_of(dtype));
      const std::vector<Outcome> found = on_stages(subject, one, {.pipeline = stages});
      for (const Outcome& of_stage : found) expect_near(of_stage, expected, what, usual_tolerance(one));
      expect_all(found, expected, what);
    }
  }
}

TEST(PipelineModels, VggTrainsAsOnOneDevice) {
  expect_same_in_every_schedule(small_vgg(), {.clip = 0.5, .cut = Cut{"features.4", "classifier"}}, 3);
}

TEST(PipelineModels, ResNetTrainsAsOnOneDevice) {
  expect_same_as_one_device(small_resnet(),
                            {.micro_batches = 2,
                             .batches = {4, 3},
                             .schedule = ScheduleKind::zero_bubble,
                             .cut = Cut{"layer2"},
                             .dtype = DType::f64},
                            2, "zero bubble in f64");
}

TEST(PipelineModels, BertTrainsAsOnOneDevice) {
  expect_same_in_every_schedule(small_bert(), {.clip = 0.3, .cut = Cut{"bert.encoder.layer.1"}}, 2);
}

// The table of words is in the first stage and the last: each has a part of its gradient.
TEST(PipelineModels, Gpt2TrainsAsOnOneDevice) {
  expect_same_in_every_schedule(small_gpt2(), {.clip = 0.3, .cut = Cut{"transformer.h.1"}}, 2);
  expect_same_as_one_device(
      small_gpt2(), {.clip = 0.3, .cut = Cut{"transformer.h", "transformer.h.1", "transformer.ln_f"}}, 4, "4 stages");
}

TEST(PipelineModels, LstmClassifierTrainsAsOnOneDevice) {
  expect_same_in_every_schedule(small_lstm(), {.cut = Cut{"lstm", "fc"}, .adam = true}, 3);
}

TEST(PipelineModels, TwoHeadedNetTrainsAsOnOneDevice) {
  expect_same_in_every_schedule(two_headed(), {.cut = Cut{"conv2", "cls"}}, 3);
}

}  // namespace
}  // namespace bonfire::pipeline_models_test
