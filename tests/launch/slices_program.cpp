// A rank that saves and reads checkpoints of slices.
//   slices_program save FOLDER             one of each cut: FOLDER/CUT-by-RANKS/step-00000001
//   slices_program load FOLDER             those of every cut by 1, 2, 3 and 4 ranks, as every cut of its own
//   slices_program die FOLDER RANK MICROS  saves step 1, then others, until that rank dies after so many microseconds
// The values of a tensor follow from its name and the place in the whole. Prints what is wrong, and ends with 1 then.

#include <signal.h>
#include <sys/time.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "bonfire/base/random.h"
#include "bonfire/bonfire.h"
#include "bonfire/train/checkpoint/checkpoint.h"

namespace {

using namespace bonfire;
namespace fs = std::filesystem;

const std::vector<std::string> kCuts = {"whole",     "axis-0", "axis-1", "axis-2",
                                        "last-axis", "blocks", "flat",   "flat-permuted"};

struct Named {
  const char* name;
  Shape shape;
  DType dtype;
};
const std::vector<Named> kTensors = {{"fc.weight", {12, 10}, DType::f32}, {"conv.weight", {6, 4, 3, 3}, DType::f32},
                                     {"packed", {18, 5}, DType::bf16},    {"bias", {7}, DType::f64},
                                     {"counts", {4, 2}, DType::i64},      {"scalar", {}, DType::f32}};

Slice cut(const std::string& how, const Shape& shape, int rank, int ranks) {
  const int rank_of = shape.rank();
  const int64_t count = shape.count();
  if (how == "flat") return Slice::range(shape, count * rank / ranks, count * (rank + 1) / ranks);
  if (how == "flat-permuted") {
    Shape order;
    for (int i = rank_of - 1; i >= 0; --i) order.push_back(i);
    return Slice::range(shape, count * rank / ranks, count * (rank + 1) / ranks, {.order = order});
  }
  const int axis = how == "axis-0" || how == "blocks" ? 0 : how == "axis-1" ? 1 : how == "axis-2" ? 2 : rank_of - 1;
  if (how == "whole" || axis >= rank_of || axis < 0) return Slice(shape);
  return Slice::part(shape, axis, rank, ranks, how == "blocks" && shape[0] % 3 == 0 ? 3 : 1);
}

Variable variable_of(const Named& tensor, const Slice& slice, uint64_t seed) {
  Variable variable({tensor.shape, tensor.dtype, {}}, tensor.name);
  variable.keep_slice(slice);
  const uint64_t stream = static_cast<uint64_t>(&tensor - kTensors.data());
  variable.set_first_values(first_values(
      [=](int64_t i) { return static_cast<float>(1000 * uniform_at(seed, stream, static_cast<uint64_t>(i))); }));
  return variable;
}

nn::StateDict state_of(const std::string& how, uint64_t seed) {
  nn::StateDict state;
  for (const Named& tensor : kTensors)
    state.push_back(
        {tensor.name, variable_of(tensor, cut(how, tensor.shape, fleet::rank(), fleet::world_size()), seed)});
  return state;
}

fs::path folder_of(const fs::path& folder, const std::string& how, int ranks) {
  return folder / (how + "-by-" + std::to_string(ranks));
}

// As a rank does it: the first one alone where all is whole.
void save(const fs::path& folder, int64_t step, const std::string& how, uint64_t seed) {
  train::CheckpointContent content{.weights = nn::StateCopy(state_of(how, seed)),
                                   .optimizer = nn::StateCopy(state_of(how, seed + 1)),
                                   .state = "{}"};
  if (fleet::world_size() == 1 || how == "whole") {
    if (fleet::rank() == 0) train::save_checkpoint(folder, step, content, 3);
  } else {
    train::save_checkpoint_of_ranks(fleet::group(), folder, step, content, 3);
  }
}

int compare(const nn::StateDict& found, const nn::StateDict& expected, const std::string& what) {
  int wrong = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i].variable.save_stored() == expected[i].variable.save_stored()) continue;
    std::printf("rank %d of %d: %s of %s differs\n", fleet::rank(), fleet::world_size(), found[i].name.c_str(),
                what.c_str());
    ++wrong;
  }
  return wrong;
}

int load(const fs::path& folder) {
  int wrong = 0, compared = 0;
  for (int ranks = 1; ranks <= 4; ++ranks)
    for (const std::string& written : kCuts) {
      const fs::path checkpoint = folder_of(folder, written, ranks) / train::checkpoint_name(1);
      if (auto damage = train::damage_of(checkpoint)) {
        std::printf("%s: %s\n", checkpoint.c_str(), damage->c_str());
        return 1;
      }
      const nn::TensorFiles weights = train::open_tensors(train::weights_file(checkpoint)),
                            optimizer = train::open_tensors(train::optimizer_file(checkpoint));
      for (const std::string& own : kCuts) {
        const nn::StateDict first = state_of(own, 99), second = state_of(own, 99);
        nn::load_state_dict(first, weights);
        nn::load_state_dict(second, optimizer);
        const std::string what = written + " by " + std::to_string(ranks) + " read as " + own;
        wrong += compare(first, state_of(own, 1), what) + compare(second, state_of(own, 2), what);
        compared += 2;
      }
    }
  std::printf("rank %d compared %d, %d wrong\n", fleet::rank(), compared, wrong);
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  const std::vector<std::string> given(words + 1, words + count);
  try {
    fleet::init();
    const fs::path folder = given.at(1);
    int status = 0;
    if (given[0] == "save")
      for (const std::string& how : kCuts) save(folder_of(folder, how, fleet::world_size()), 1, how, 1);
    if (given[0] == "load") status = load(folder);
    if (given[0] == "die") {
      save(folder, 1, "axis-0", 1);
      if (fleet::rank() == std::stoi(given.at(2))) {
        const itimerval when{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = 1 + std::stoi(given.at(3))}};
        signal(SIGALRM, SIG_DFL);
        setitimer(ITIMER_REAL, &when, nullptr);
      }
      for (int64_t step = 2; step < 100; ++step) save(folder, step, "axis-0", 1);
    }
    fleet::leave();
    return status;
  } catch (const std::exception& error) {
    std::printf("rank failed: %s\n", error.what());
    return 1;
  }
}
