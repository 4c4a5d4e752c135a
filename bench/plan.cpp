// Where the time of a training step goes: every node of the compiled step, what was chosen for it, its layout, time,
// GFLOP/s, GB/s and share. `bonfire inspect plan` shows the same for every model by its name.
//
//   bench_plan CASE [--dtype f32|bf16] [--batch N] [--steps N]
//
// CASE: a model's name (resnet18_small, mnist_cnn, bert_mini, resnet50), or lstm. BONFIRE_CPU_THREADS sets the threads.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/graph/mixed_precision.h"
#include "bonfire/models/lstm_classifier.h"
#include "bonfire/passes/pass.h"
#include "bonfire/train/report/step_profile.h"

namespace {

using namespace bonfire;

int usual_batch(const std::string& name) { return name == "resnet50" || name == "bert_mini" ? 16 : 64; }

// The LSTM of bench_cpu knows more words than the default of the model, and is wider.
train::StepSubject subject_of(const std::string& name, int64_t batch) {
  if (name != "lstm") return train::step_subject(name, {.batch = batch});
  train::StepSubject subject = train::step_subject("lstm_classifier", {.batch = batch});
  models::LstmClassifier wide({.vocabulary = 10000, .embedding = 256, .hidden = 256});
  subject.model = models::Model(wide, [wide](const Tensor& tokens) { return std::vector<Tensor>{wide(tokens)}; });
  return subject;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::string name = "resnet18_small", dtype = "f32";
    int batch = 0;
    train::ProfileOptions options;
    CLI::App flags("Where the time of a training step goes", "bench_plan");
    flags.add_option("model", name, "else resnet18_small");
    flags.add_option("--dtype", dtype, "f32 or bf16")->check(CLI::IsMember({"f32", "bf16"}));
    flags.add_option("--batch", batch, "samples of a step; else each model has its own")->check(CLI::PositiveNumber);
    flags.add_option("--steps", options.steps, "that are measured")->check(CLI::PositiveNumber);
    CLI11_PARSE(flags, argc, argv);
    if (batch == 0) batch = usual_batch(name);
    use_mixed_precision(dtype == "bf16");
    std::string text = train::to_string(train::profile_step(subject_of(name, batch), options));
    std::printf("%s%s\n", text.c_str(), name.c_str());
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
