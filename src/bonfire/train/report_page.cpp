#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bonfire/base/file.h"
#include "bonfire/data/transforms.h"
#include "bonfire/train/chart.h"
#include "bonfire/train/png.h"
#include "bonfire/train/reporter.h"

namespace bonfire::train {

namespace {

constexpr std::string_view kHead = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Bonfire</title><style>
:root { --page: #fbfaf8; --card: #fff; --ink: #222; --soft: #6d6a66; --line: #e4e0da; --a: #d9480f; --b: #1864ab; --c: #2b8a3e; --heat: 217, 72, 15; }
@media (prefers-color-scheme: dark) {
  :root { --page: #171615; --card: #21201e; --ink: #eae7e2; --soft: #a19c95; --line: #3a3734; --a: #ff8c42; --b: #74b9ff; --c: #69db7c; --heat: 255, 140, 66; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 68rem; background: var(--page); color: var(--ink); font: 16px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: .5rem 0 0; } h2 { font-size: 1.05rem; margin: 1.6rem 0 .6rem; } p { color: var(--soft); margin: .2rem 0 1rem; }
.tiles, .charts, .pictures { display: grid; gap: .8rem; }
.tiles { grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); } .charts { grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
.pictures { grid-template-columns: repeat(auto-fill, minmax(6rem, 1fr)); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .7rem; }
.tiles b { display: block; font-size: 1.35rem; } .tiles span, figcaption { color: var(--soft); font-size: .85rem; }
figure { margin: 0; text-align: center; } figure img { width: 100%; image-rendering: pixelated; border-radius: .3rem; } .wrong { color: var(--a); }
svg { width: 100%; height: auto; display: block; } svg text { font: 11px system-ui, sans-serif; fill: var(--soft); } svg .title { font-size: 13px; fill: var(--ink); }
.grid { stroke: var(--line); } .curve { fill: none; stroke-width: 1.8; stroke-linejoin: round; } .curve.c0 { stroke: var(--a); } .curve.c1 { stroke: var(--b); } .curve.c2 { stroke: var(--c); }
.dot.c0 { fill: var(--a); } .dot.c1 { fill: var(--b); } .dot.c2 { fill: var(--c); } svg .legend.c0 { fill: var(--a); } svg .legend.c1 { fill: var(--b); } svg .legend.c2 { fill: var(--c); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; } td, th { padding: .25rem .5rem; text-align: right; font-weight: normal; white-space: nowrap; }
.layers td:first-child, .layers th:first-child, .layers td:last-child, .layers th:last-child { text-align: left; } .layers tr + tr { border-top: 1px solid var(--line); } .layers tr:last-child td { font-weight: bold; }
pre { overflow-x: auto; font-size: .8rem; margin: 0; } details summary { cursor: pointer; }
</style></head><body>
)";

// Large images as small ones: the page holds many.
std::string encoded_small(const data::Array& image) {
  constexpr int64_t kLargest = 112;  // pixels
  int64_t largest = std::max(image.shape[0], image.shape[1]);
  data::Sample shown{image, {}, {}};
  if (largest > kLargest) {
    auto scaled = [&](int64_t length) { return std::max<int64_t>(1, length * kLargest / largest); };
    data::resize({.size = {scaled(image.shape[0]), scaled(image.shape[1])}})(shown, {0, 0, 0});
  }
  return encode_png(shown.input.bytes, shown.input.shape);
}

class ReportPage final : public Reporter {
 public:
  void begin(const RunBegins& run) override { run_ = run; }
  void step(const StepReport&) override {}
  void evaluated(const EvaluationReport& report) override {
    last_ = report;
    write();
  }
  void note(const std::string&) override {}
  void end(const RunEnds& run) override {
    ended_ = run;
    write();
  }

 private:
  void write() {
    read_metrics();
    std::string page = std::string(kHead) + heading() + tiles() + charts() + predictions() + confusion() + layers() +
                       details() + "</body></html>\n";
    const std::span<const std::byte> chunks[] = {std::as_bytes(std::span<const char>(page))};
    base::write_file_atomically(run_.folder / "report.html", chunks);
  }

  // What earlier parts of a resumed run wrote is there too.
  void read_metrics() {
    train_loss_ = {"training", {}, {}}, test_loss_ = {"test", {}, {}};
    train_top1_ = {"training", {}, {}}, test_top1_ = {"test", {}, {}};
    computing_ = {"compute", {}, {}}, data_wait_ = {"data", {}, {}}, communication_ = {"communication", {}, {}};
    rate_ = {"rate", {}, {}}, speed_ = {run_.unit + "/s", {}, {}};
    std::ifstream in(run_.folder / "metrics.jsonl");
    auto add = [](Curve& curve, const nlohmann::json& event, const char* key) {
      if (event.contains(key) && event[key].is_null()) return;  // how JSON writes what is no number
      curve.x.push_back(event.at("step"));
      curve.y.push_back(event.value(key, 0.0));  // runs that were begun by an older version lack some
    };
    for (std::string text; std::getline(in, text);) {
      nlohmann::json event = nlohmann::json::parse(text, nullptr, false);
      if (event.is_discarded()) continue;
      if (event.value("event", "") == "step") {
        add(train_loss_, event, "loss");
        if (event.contains("top1")) add(train_top1_, event, "top1");  // text has none
        add(rate_, event, "lr");
        add(speed_, event, "samples_per_second");
        add(data_wait_, event, "data_wait");
        add(communication_, event, "communication_wait");
        computing_.x.push_back(event.at("step"));
        computing_.y.push_back(1 - data_wait_.y.back() - communication_.y.back());
      } else if (event.value("event", "") == "evaluation") {
        add(test_loss_, event, "loss");
        add(test_top1_, event, "top1");
      }
    }
  }

  std::string heading() const {
    return fmt::format("<h1>{} on {}</h1><p>{} {} to train on, {} to test; {} epochs of {} steps on {}</p>\n",
                       escape_html(run_.model), escape_html(run_.data), run_.train_samples, run_.unit,
                       run_.test_samples, run_.epochs, run_.steps_per_epoch, escape_html(run_.place));
  }

  std::string tiles() const {
    auto tile = [](const std::string& value, const std::string& name) {
      return fmt::format("<div class=\"card\"><b>{}</b><span>{}</span></div>", value, name);
    };
    double best = test_top1_.y.empty() ? 0 : *std::max_element(test_top1_.y.begin(), test_top1_.y.end());
    std::vector<double> speeds = speed_.y;
    std::sort(speeds.begin(), speeds.end());
    std::string text = "<div class=\"tiles\">" +
                       tile(fmt::format("{:.2f} %", 100 * best), "best top-1 on the test " + run_.unit) +
                       tile(fmt::format("{:.2f} %", 100 * last_.top5), "top-5, last epoch") +
                       tile(speeds.empty() ? "–" : fmt::format("{:.0f}", speeds[speeds.size() / 2]),
                            run_.unit + " a second (median)") +
                       tile(fmt::format("{}", run_.parameters), "parameters");
    if (ended_.seconds > 0)
      text += tile(fmt::format("{:.0f} s", ended_.seconds),
                   ended_.interrupted ? "until it was stopped" : "from begin to end");
    return text + "</div>\n";
  }

  std::string charts() const {
    auto card = [](const std::string& chart) { return chart.empty() ? "" : "<div class=\"card\">" + chart + "</div>"; };
    return "<h2>Curves</h2><div class=\"charts\">" + card(draw_chart({train_loss_, test_loss_}, {"loss", "step"})) +
           card(draw_chart({train_top1_, test_top1_}, {"accuracy", "step", true})) +
           card(draw_chart({rate_}, {"learning rate", "step"})) +
           card(draw_chart({speed_}, {run_.unit + " a second", "step"})) +
           card(draw_chart({computing_, data_wait_, communication_}, {"where the time goes", "step", true})) +
           "</div>\n";
  }

  // Layers, and what one sample costs in each.
  std::string layers() const {
    if (run_.layers.empty()) return {};
    std::string text =
        "<h2>The model: one sample, forward</h2><div class=\"card scroll\"><table class=\"layers\"><tr><th>layer</th>"
        "<th>output</th><th>parameters</th><th>MFLOP</th><th>kB kept</th><th>ops</th></tr>\n";
    auto row = [&](const std::string& name, const std::string& output, const ModelRow& of) {
      text += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.2f}</td><td>{:.1f}</td><td>{}</td></tr>\n",
                          escape_html(name), output, of.parameters, of.operations * 1e-6, of.bytes * 1e-3,
                          escape_html(of.ops));
    };
    ModelRow sum;
    for (const ModelRow& of : run_.layers) {
      row(of.path.empty() ? "(between layers)" : of.path, to_string(of.output), of);
      sum.parameters += of.parameters;
      sum.operations += of.operations;
      sum.bytes += of.bytes;
    }
    row("all", "", sum);
    return text + "</table></div>\n";
  }

  const std::string& name_of(int64_t label) const { return run_.class_names.at(static_cast<size_t>(label)); }

  std::string predictions() const {
    if (last_.predictions.empty()) return {};
    std::string text = "<h2>Test images: the wrong ones first</h2><div class=\"pictures\">";
    for (const Prediction& p : last_.predictions) {
      std::string caption = fmt::format("{} ({:.0f} %)", escape_html(name_of(p.predicted)), 100 * p.probability);
      if (p.predicted != p.label)
        caption = fmt::format("<span class=\"wrong\">{}</span>, is {}", caption, escape_html(name_of(p.label)));
      text += fmt::format(
          "<figure class=\"card\"><img alt=\"test image {}\" "
          "src=\"data:image/png;base64,{}\"><figcaption>{}</figcaption></figure>\n",
          p.index, encode_base64(encoded_small(p.image)), caption);
    }
    return text + "</div>\n";
  }

  std::string confusion() const {
    constexpr size_t kMostClasses = 40;
    size_t classes = run_.class_names.size();
    if (classes > kMostClasses || last_.confusion.size() != classes * classes) return {};
    std::string text =
        "<h2>What is taken for what</h2><div class=\"card scroll\"><table><tr><th>label \\ taken for</th>";
    for (const std::string& name : run_.class_names) text += fmt::format("<th>{}</th>", escape_html(name));
    for (size_t row = 0; row < classes; ++row) {
      auto counts = std::span(last_.confusion).subspan(row * classes, classes);
      int64_t all = 0;
      for (int64_t count : counts) all += count;
      text += fmt::format("</tr>\n<tr><th>{}</th>", escape_html(run_.class_names[row]));
      for (int64_t count : counts)
        text += fmt::format("<td style=\"background: rgba(var(--heat), {:.3f})\">{}</td>",
                            all > 0 ? 0.7 * static_cast<double>(count) / static_cast<double>(all) : 0.0,
                            count > 0 ? std::to_string(count) : "");
    }
    return text + "</tr></table></div>\n";
  }

  std::string details() const {
    auto fold = [](const char* title, const std::string& text) {
      return fmt::format("<h2></h2><details class=\"card\"><summary>{}</summary><pre>{}</pre></details>\n", title,
                         escape_html(text));
    };
    return fold("The model as a tree", run_.modules) + fold("Every setting of this run", run_.config);
  }

  RunBegins run_;
  EvaluationReport last_;
  RunEnds ended_;
  Curve train_loss_, test_loss_, train_top1_, test_top1_, rate_, speed_, computing_, data_wait_, communication_;
};

}  // namespace

std::unique_ptr<Reporter> report_page() { return std::make_unique<ReportPage>(); }

}  // namespace bonfire::train
