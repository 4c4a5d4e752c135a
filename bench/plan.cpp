// Where the time of a training step goes: every node of the compiled step, what was chosen for it, its layout, time,
// GFLOP/s, GB/s and share. `bonfire inspect plan` shows the same for every model by its name.
//
//   bench_plan CASE [--dtype f32|bf16] [--batch N] [--steps N]
//
// CASE: a model's name (resnet18_small, mnist_cnn, bert_mini, resnet50), or lstm. BONFIRE_CPU_THREADS sets the threads.

#include <cstdio>
#include <string>

#include "bonfire/base/error.h"
#include "bonfire/models/lstm_classifier.h"
#include "bonfire/passes/pass.h"
#include "bonfire/train/step_profile.h"

namespace {

using namespace bonfire;

int64_t usual_batch(const std::string& name) { return name == "resnet50" || name == "bert_mini" ? 16 : 64; }

// The LSTM of bench_cpu is wider than the model's default.
train::StepSubject subject_of(const std::string& name, int64_t batch) {
  if (name != "lstm") return train::step_subject(name, {.batch = batch});
  train::StepSubject subject = train::step_subject("lstm_classifier", {.batch = batch});
  models::LstmClassifier wide({.vocabulary = 1000, .embedding = 256, .hidden = 256});
  subject.model = models::Model(wide, [wide](const Tensor& tokens) { return std::vector<Tensor>{wide(tokens)}; });
  return subject;
}

}  // namespace

int main(int argc, char** argv) {
  std::string name = argc > 1 ? argv[1] : "resnet18_small";
  int64_t batch = usual_batch(name);
  train::ProfileOptions options;
  for (int i = 2; i + 1 < argc; i += 2) {
    std::string flag = argv[i];
    if (flag == "--dtype") passes::current_options().use_amp = std::string(argv[i + 1]) == "bf16";
    if (flag == "--batch") batch = std::stoll(argv[i + 1]);
    if (flag == "--steps") options.steps = std::stoi(argv[i + 1]);
  }
  try {
    std::string text = train::to_string(train::profile_step(subject_of(name, batch), options));
    std::printf("%s%s\n", text.c_str(), name.c_str());
  } catch (const Error& error) {
    std::fprintf(stderr, "bench_plan: %s\n", error.what());
    return 2;
  }
  return 0;
}
