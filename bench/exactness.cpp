// Rounding errors of every candidate of every op that has a choice or sums much, at the shapes of models: against f64,
// and as a multiple of the plain kernel's.
//
//   bench_exactness [--case TEXT] [--place cpu|gpu] [--kernels neon] [--json FILE]
//
// Of cases only those whose name or op contains the text. `stated` is what the planner goes by (Candidate::error);
// a row that ends in ! has measured more. `not zero`: share of the results that are exactly zero and come out as noise,
// which only candidates may that say so. Exit status 1 when a candidate is less exact than it states. On a GPU, ops
// that have no kernel there are said to have none.

#include "bonfire/runtime/exactness.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bonfire/base/error.h"
#include "instruction_sets.h"
#include "tests/support/exactness_cases.h"

namespace {

using namespace bonfire;
using exactness::Case;
using exactness::Layer;

// Layers after a ReLU, whose gradient comes through a ReLU; and those whose gradient comes through a max pooling, also
// when most of the net is silent.
const Layer kLayers[] = {
    {"resnet18 64@28 3x3", 64, 64, 28, 64, 3, 1},      {"resnet18 128@14 3x3", 64, 128, 14, 128, 3, 1},
    {"resnet18 256@7 3x3", 64, 256, 7, 256, 3, 1},     {"resnet18 512@4 3x3", 64, 512, 4, 512, 3, 1},
    {"resnet50 64@56 3x3", 4, 64, 56, 64, 3, 1},       {"alexnet71 192@3 3x3 384", 17, 192, 3, 384, 3, 1},
    {"alexnet71 384@3 3x3 256", 17, 384, 3, 256, 3, 1}};
const Layer kPooledLayers[] = {{"mnist 20@12 5x5 20", 64, 20, 12, 20, 5, 0},
                               {"alexnet71 64@8 5x5 192", 17, 64, 8, 192, 5, 2},
                               {"alexnet71 256@3 3x3 256", 17, 256, 3, 256, 3, 1},
                               {"vgg 64@32 3x3", 8, 64, 32, 64, 3, 1}};

std::vector<Case> cases() {
  std::vector<Case> list;
  auto add = [&](const std::vector<Case>& more) { list.insert(list.end(), more.begin(), more.end()); };
  for (const Layer& layer : kLayers) add(exactness::convolution_cases(layer, exactness::kRelu));
  for (const Layer& layer : kPooledLayers)
    for (const exactness::Density& density : {exactness::kPooled, exactness::kThin})
      add(exactness::convolution_cases(layer, density));
  add({exactness::matmul_case("square", 1024, 1024, 1024, false, false),
       exactness::matmul_case("linear, BERT-mini", 2048, 1024, 256, false, true),
       exactness::matmul_case("its weight gradient", 1024, 256, 2048, true, false),
       exactness::matmul_case("alexnet 9216 to 4096", 17, 4096, 9216, false, true),
       exactness::loss_case("BERT-mini", 512, 256, 30522)});
  add(exactness::lstm_cases("LSTM 256", 100, 64, 256));
  add(exactness::attention_cases("BERT-mini", 4, 4, 128, 64));
  return list;
}

struct Settings {
  std::string text, place = "cpu", kernels, json;
};

Device place_named(const std::string& name) {
  if (name == "cpu") return {};
  if (name == "gpu") return parse_device("cuda");
  throw_error<ConfigError>("[bench_exactness] --place is '{}', expected cpu or gpu", name);
}

std::vector<runtime::CandidateError> errors_of(const Case& one, Device device) {
  try {
    const exactness::NodeOf made(one, device);
    return runtime::candidate_errors(made.node(), made.inputs());
  } catch (const DeviceError& error) {
    if (device.type == DeviceType::cpu) throw;
    fmt::print("{:<31} {:<24} {}\n", one.name, one.op, error.what());
    return {};
  }
}

bool run(const Settings& settings) {
  if (!settings.kernels.empty()) cpu::set_instruction_set_for_test(bench::instruction_set_named(settings.kernels));
  fmt::print("{:<31} {:<24} {:<22} {:>9} {:>9} {:>7} {:>9}\n", "case", "op", "candidate", "error", "multiple", "stated",
             "not zero");
  nlohmann::json rows = nlohmann::json::array();
  bool as_stated = true;
  for (const Case& one : cases()) {
    if (one.name.find(settings.text) == std::string::npos && one.op.find(settings.text) == std::string::npos) continue;
    for (const runtime::CandidateError& row : errors_of(one, place_named(settings.place))) {
      const bool more = row.multiple > row.stated || (row.keeps_zeros && row.not_zeros > 0);
      as_stated &= !more;
      fmt::print("{:<31} {:<24} {:<22} {:9.1e} {:9.2f} {:7g} {:8.1f}%{}\n", one.name, one.op, row.candidate, row.error,
                 row.multiple, row.stated, 100 * row.not_zeros, more ? " !" : "");
      rows.push_back({{"case", one.name},
                      {"op", one.op},
                      {"candidate", row.candidate},
                      {"error", row.error},
                      {"multiple", row.multiple},
                      {"stated", row.stated},
                      {"not_zeros", row.not_zeros}});
    }
  }
  if (rows.empty()) throw_error<ConfigError>("[bench_exactness] --case: no case has '{}' in its name", settings.text);
  if (!settings.json.empty()) std::ofstream(settings.json) << rows.dump(1) << '\n';
  return as_stated;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Settings settings;
    CLI::App flags("How far each kernel rounds from f64", "bench_exactness");
    flags.add_option("--case", settings.text, "cases whose name has this in it");
    flags.add_option("--place", settings.place, "cpu or gpu");
    flags.add_option("--kernels", settings.kernels, "the instruction set");
    flags.add_option("--json", settings.json, "a file for what was measured");
    CLI11_PARSE(flags, argc, argv);
    return run(settings) ? 0 : 1;
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
