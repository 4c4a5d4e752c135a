#include "bonfire/train/report/describe.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/data/labels.h"
#include "bonfire/nn/safetensors.h"
#include "bonfire/train/checkpoint/checkpoint.h"
#include "bonfire/train/checkpoint/fingerprint.h"
#include "bonfire/train/checkpoint/ledger.h"
#include "bonfire/train/data/open_data.h"
#include "bonfire/train/report/number_text.h"
#include "bonfire/train/report/sample_trace.h"

namespace bonfire::train {

namespace {

namespace fs = std::filesystem;

std::string describe_file(const fs::path& path) {
  const nn::TensorFiles file = open_tensors(path);
  std::string text = path.string() + "\n";
  int64_t elements = 0;
  size_t bytes = 0, width = 4;
  for (const nn::TensorEntry& entry : file.entries()) width = std::max(width, entry.name.size());
  for (const nn::TensorEntry& entry : file.entries()) {
    const std::string shape = entry.slice == nullptr ? to_string(entry.shape) : to_string(*entry.slice);
    text += fmt::format("  {:<{}}  {:<5} {}\n", entry.name, width, name_of(entry.dtype), shape);
    elements += entry.shape.count();
    bytes += entry.bytes.size();
  }
  for (const auto& [key, value] : file.metadata()) text += fmt::format("  # {}: {}\n", key, value);
  return text + fmt::format("  {} tensors, {} elements, {:.1f} MB\n", file.entries().size(), elements,
                            static_cast<double>(bytes) / 1e6);
}

// What it was trained with; nothing where an older version saved it.
std::string describe_fingerprint(const fs::path& checkpoint) {
  const std::optional<Fingerprint> print = fingerprint_in(checkpoint);
  if (!print) return {};
  std::string text =
      fmt::format("  fingerprint {}: data {}, {} to train on, {} to test, classes {}, version {}\n", hash_of(*print),
                  print->data, in_words(print->train), in_words(print->test), print->classes, print->version);
  return print->own.empty() ? text : fmt::format("{}  trained by a program's own trainer: {}\n", text, print->own);
}

std::string describe_checkpoint(const fs::path& path) {
  std::string text = fmt::format("checkpoint {}: whole\n", path.string()) + describe_fingerprint(path);
  text += describe_file(weights_file(path));
  if (base::exists(average_file(path))) text += describe_file(average_file(path));
  return text + describe_file(optimizer_file(path));
}

std::string describe_data(const OpenedData& data) {
  std::string text = fmt::format("data {}: {} to train on, {} to test, {} classes\n", data.title, data.train->size(),
                                 data.test->size(), data.classes);
  if (!data.passed_over.empty()) text += fmt::format("  passed over: {}\n", data.passed_over);
  if (!data.pixels.empty()) text += fmt::format("  images u8 {}; {}\n", to_string(data.image), data.pixels);
  if (data.class_names.empty()) return text;
  const std::vector<int64_t> train = data::count_labels(*data.train, data.classes),
                             test = data::count_labels(*data.test, data.classes);
  for (size_t i = 0; i < train.size(); ++i)
    text += fmt::format("  {:<16} {:>8} {:>8}\n", data.class_names[i], train[i], test[i]);
  return text;
}

// Text or images, as it turns out.
OpenedData open_any(const fs::path& path) {
  Config config;
  config.data = path.string();
  if (base::exists(path / "vocab.txt"))
    config.model = "bert_mini";
  else if (base::exists(path / "train.txt"))
    config.model = "gpt2";
  return open_data(config);
}

}  // namespace

Description describe(const fs::path& path) {
  if (base::kind_of(path) == base::PathKind::file) return {describe_file(path)};
  if (base::exists(path / "manifest.json")) {
    if (auto damage = damage_of(path))
      return {fmt::format("checkpoint {}: DAMAGED: {}\n", path.string(), *damage), true};
    return {describe_checkpoint(path)};
  }
  std::vector<std::string> skipped;
  std::optional<fs::path> newest = newest_checkpoint(path / "checkpoints", &skipped);
  std::string text;
  for (const std::string& one : skipped) text += "damaged: " + one + "\n";
  if (newest) return {text + describe_checkpoint(*newest), !skipped.empty()};
  std::string reason = skipped.empty() ? "" : skipped[0];
  try {
    if (reason.empty() && (path == "generated" || base::is_folder(path))) return {describe_data(open_any(path))};
  } catch (const Error& error) {
    reason = error.what();
  }
  throw_error<DataError>(
      "[inspect] {} is neither a safetensors file, nor a checkpoint, nor a run with a whole checkpoint, nor a folder "
      "of data{}",
      path.string(), reason.empty() ? "" : " (" + reason + ")");
}

Description describe_samples(const fs::path& run) {
  const bool is_checkpoint = base::exists(run / "manifest.json");
  std::optional<fs::path> checkpoint = is_checkpoint ? run : newest_checkpoint(run / "checkpoints", nullptr);
  if (!checkpoint || damage_of(*checkpoint))
    throw_error<DataError>("[inspect] there is no whole checkpoint in '{}', expected a run or a checkpoint",
                           run.string());
  nlohmann::json state = nlohmann::json::parse(read_checkpoint_state(*checkpoint), nullptr, false);
  if (!state.is_object() || !state.contains("ledger"))
    throw_error<DataError>("[inspect] {} has no ledger: an older Bonfire has written it", checkpoint->string());
  const Ledger ledger = Ledger::parse(state["ledger"].dump());
  LedgerFindings found = check_ledger(ledger);
  const TraceComparison traced =
      compare_with_traces(ledger, is_checkpoint ? fs::absolute(run).parent_path().parent_path() : run);
  std::string text = fmt::format("{}\n  {}\n", checkpoint->string(), found.summary);
  for (const std::string& fault : found.faults) text += "  " + fault + "\n";
  if (traced.steps > 0)
    text += fmt::format("  traces: at {} of {} ranks read {}\n", traced.steps,
                        plural(traced.steps + traced.untraced, "step"),
                        traced.faults.empty() ? "exactly the samples that are recorded" : "other samples:");
  for (const std::string& fault : traced.faults) text += "    " + fault + "\n";
  return {text, !found.faults.empty() || !traced.faults.empty()};
}

}  // namespace bonfire::train
