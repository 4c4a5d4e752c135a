// Every model on every mesh in every schedule: 30 steps, of which some have fewer rows than their micro-batches want,
// against one device that adds up the gradients of as many micro-batches: to 1e-9 in f64 and 1e-4 in f32, with kernels
// that were not timed. Each rank holds its part of its stage alone (in_stages.h). Of that a few combinations always
// run.
//
//   BONFIRE_MESHES=all test_parallel --gtest_filter=EveryMesh.*     all of them, 40 to 50 a model and type
#include "tests/parallel/in_stages.h"
#include "tests/support/pinned_kernels.h"
#include "tests/support/under_sanitizer.h"

namespace bonfire::every_mesh_test {
namespace {

using namespace in_stages;

struct Stages {
  ScheduleKind schedule;
  int chunks = 1;
};

// What ranks along the pipeline axis can do; one alone has nothing to schedule.
std::vector<Stages> ways_of(int pipeline, int most_stages) {
  if (pipeline == 1) return {{ScheduleKind::one_f_one_b}};
  std::vector<Stages> ways;
  for (ScheduleKind schedule : kSchedules) ways.push_back({schedule});
  for (int chunks : {1, 2})
    if (chunks * pipeline <= most_stages) ways.push_back({ScheduleKind::interleaved, chunks});
  return ways;
}

// What a model can be cut into, and how long rounding in f32 stays small.
struct Most {
  int stages = 4, parts = 2;
  size_t f32_steps = 30;
};

std::vector<MeshSizes> meshes_up_to(const Most& most) {
  std::vector<MeshSizes> meshes;
  for (int data : {1, 2, 4})
    for (int pipeline : {1, 2, std::min(4, most.stages)})
      for (int tensor : {1, 2, 4}) {
        const int world = data * pipeline * tensor;
        if (world > 1 && world <= 8 && tensor <= most.parts)
          meshes.push_back({.data = data, .pipeline = pipeline, .tensor = tensor});
      }
  return meshes;
}

std::vector<int64_t> rows_of_steps(size_t steps) {
  std::vector<int64_t> rows;
  while (rows.size() < steps) rows.push_back(rows.size() % 7 == 3 ? 6 : rows.size() % 7 == 5 ? 5 : 8);
  return rows;
}

// Stages are cut where the costs of the nodes say, which leaves small models' unequal.
void expect_on_every_mesh(const Subject& subject, Training run, const Most& most = {}) {
  const testing::PinnedKernels pinned;
  size_t number = 0;
  for (DType dtype : {DType::f64, DType::f32}) {
    run.batches = rows_of_steps(std::min<size_t>(all_meshes() ? 30 : 4, dtype == DType::f32 ? most.f32_steps : 30));
    for (const MeshSizes& mesh : meshes_up_to(most))
      for (const Stages& stages : ways_of(mesh.pipeline, most.stages)) {
        if (!all_meshes() && number++ % (testing::kUnderSanitizer ? 69 : 23) != 11) continue;
        run.dtype = dtype;
        run.replicas = mesh.data;
        run.schedule = stages.schedule;
        run.chunks = stages.chunks;
        const std::string what = fmt::format("{} with {} stages a rank, {}, {}", name_of(stages.schedule),
                                             stages.chunks, name_of(dtype), to_string(mesh));
        SCOPED_TRACE(what);
        expect_same_as_one_device(subject, run, mesh, what);
        if (::testing::Test::HasFailure()) return;
      }
  }
}

TEST(EveryMesh, TrainsAVgg) { expect_on_every_mesh(small_vgg(), {.clip = 0.5}); }
// Batch norm over eight values makes rounding ten times as large in each step.
TEST(EveryMesh, TrainsAResNet) { expect_on_every_mesh(small_resnet(), {.clip = 0.5}, {.parts = 4, .f32_steps = 1}); }
TEST(EveryMesh, TrainsABert) { expect_on_every_mesh(small_bert(), {.clip = 0.3}); }
TEST(EveryMesh, TrainsAGpt2) { expect_on_every_mesh(small_gpt2(), {.clip = 0.3}); }
TEST(EveryMesh, TrainsAnLstm) { expect_on_every_mesh(small_lstm(), {.adam = true}, {.stages = 3}); }
TEST(EveryMesh, TrainsATwoHeadedNet) { expect_on_every_mesh(two_headed(), {.clip = 0.5}); }

}  // namespace
}  // namespace bonfire::every_mesh_test
