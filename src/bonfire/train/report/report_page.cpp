#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/data/transforms.h"
#include "bonfire/train/report/chart.h"
#include "bonfire/train/report/memory_chart.h"
#include "bonfire/train/report/number_text.h"
#include "bonfire/train/report/png.h"
#include "bonfire/train/report/report_frame.h"
#include "bonfire/train/report/reporter.h"
#include "bonfire/train/report/schedule_chart.h"

namespace bonfire::train {

namespace {

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

std::string local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[64];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M %Z", &parts)};
}

class ReportPage final : public Reporter {
 public:
  void begin(const RunBegins& run) override {
    run_ = run;
    started_ = local_time();
  }
  void step(const StepReport&) override {}
  void evaluated(const EvaluationReport& report) override {
    last_ = report;
    write();
  }
  void memory(const MemoryReport& report) override { memory_ = report; }
  void note(const std::string&) override {}
  void end(const RunEnds& run) override {
    ended_ = run;
    write();
  }
  std::string take_warning() override { return std::exchange(warning_, {}); }
  std::string missing() const override {
    return failure_.empty() ? "" : "there is no report of the whole run: " + failure_;
  }

 private:
  void write() {
    read_metrics();
    std::string page = report_begin(title()) + heading() + tiles() + charts() + schedule() + memory_of_a_step() +
                       waiting() + predictions() + confidence() + confusion() + lowest_recalls() + layers() +
                       details() + report_end();
    const std::span<const std::byte> chunks[] = {std::as_bytes(std::span<const char>(page))};
    try {
      base::write_file_atomically(run_.folder / "report.html", chunks);
      failure_.clear();
    } catch (const DataError& error) {
      if (failure_.empty()) warning_ = fmt::format("{}; the page is tried again after each evaluation", error.what());
      failure_ = error.what();
    }
  }

  // What earlier parts of a resumed run wrote is there too.
  void read_metrics() {
    train_loss_ = {"training", {}, {}}, test_loss_ = {evaluated_on(), {}, {}};
    train_score_ = {"training", {}, {}}, test_score_ = {evaluated_on(), {}, {}};
    computing_ = {"compute", {}, {}}, data_wait_ = {"data", {}, {}}, communication_ = {"communication", {}, {}};
    rate_ = {"rate", {}, {}}, speed_ = {run_.unit + "/s", {}, {}};
    when_.clear();
    waits_.clear();
    const std::filesystem::path log = run_.folder / "metrics.jsonl";
    if (base::kind_of(log) != base::PathKind::file) return;  // nothing that ends
    std::ifstream in(log);
    for (std::string text; std::getline(in, text);) {
      nlohmann::json event = nlohmann::json::parse(text, nullptr, false);
      if (event.is_discarded()) continue;
      if (event.value("event", "") == "step") read_step(event);
      if (event.value("event", "") != "evaluation" || event.value("on", "test") != evaluated_on()) continue;
      add(test_loss_, event, "loss");
      add(test_score_, event, metric().name.c_str());
      when_.push_back(when_of({.epoch = event.value("epoch", int64_t{0}),
                               .step = event.value("step", int64_t{0}),
                               .ends_epoch = event.value("ends_epoch", true)}));
    }
  }

  void read_step(const nlohmann::json& event) {
    add(train_loss_, event, "loss");
    if (event.contains(metric().name)) add(train_score_, event, metric().name.c_str());
    add(rate_, event, "lr");
    add(speed_, event, "samples_per_second");
    add(data_wait_, event, "data_wait");
    add(communication_, event, "communication_wait");
    computing_.x.push_back(event.at("step"));
    computing_.y.push_back(1 - data_wait_.y.back() - communication_.y.back());
    if (event.contains("communication_waits")) waits_.push_back(event["communication_waits"]);
  }

  static void add(Curve& curve, const nlohmann::json& event, const char* key) {
    if (event.contains(key) && event[key].is_null()) return;  // how JSON writes what is no number
    curve.x.push_back(event.at("step"));
    curve.y.push_back(event.value(key, 0.0));  // runs that were begun by an older version lack some
  }

  // Of the evaluations so far. There is one at least when a page is written after the first.
  size_t best() const {
    auto worse = [metric = metric()](double a, double b) { return metric.is_better(b, a); };
    return static_cast<size_t>(std::max_element(test_score_.y.begin(), test_score_.y.end(), worse) -
                               test_score_.y.begin());
  }
  Metric metric() const { return run_.headline(); }
  std::string in_words(double value) const { return value_in_words(metric(), value); }
  Numbers numbers() const { return metric().unit == Metric::Unit::share ? Numbers::share : Numbers::loss; }

  std::string title() const {
    std::string text = run_.model + " on " + run_.data;
    if (!test_score_.y.empty()) text += ": " + in_words(headline());
    return text + " (Bonfire)";
  }

  // What the curves are of: where samples are held back, those.
  const char* evaluated_on() const {
    return name_of(run_.validates() ? EvaluationReport::On::validation : EvaluationReport::On::test);
  }
  std::optional<double> tested() const {  // of the best weights, once
    if (run_.validates() && last_.on == EvaluationReport::On::test && last_.step > 0) return last_.headline();
    return ended_.test_score;
  }
  double headline() const { return tested().value_or(test_score_.y.back()); }

  std::string heading() const {
    std::string steps = run_.counts_epochs() ? fmt::format("{} of {}", plural(run_.epochs, "epoch"),
                                                           plural(run_.steps_per_epoch, "step"))
                                             : plural(run_.total_steps, "step");
    std::string text =
        fmt::format("<h1>{} on {}</h1><p>{} {} to train on{}{}; {} of {} {} on {}</p>\n", escape_html(run_.model),
                    escape_html(run_.data), grouped(run_.train_samples), escape_html(run_.unit),
                    run_.validates() ? fmt::format(", {} to validate", grouped(run_.validation_samples)) : "",
                    run_.test_samples > 0 ? fmt::format(", {} to test", grouped(run_.test_samples)) : "", steps,
                    grouped(run_.batch_size * run_.replicas), escape_html(run_.unit),
                    escape_html(run_.ranks > 1 ? plural(run_.ranks, "rank") : run_.place));
    if (!run_.mesh.empty()) text += fmt::format("<p>Mesh: {}</p>\n", escape_html(run_.mesh));
    if (!run_.pixels.empty()) text += fmt::format("<p>Pixels: {}</p>\n", escape_html(run_.pixels));
    text += fmt::format("<p>Begun on {} by Bonfire {}", started_, escape_html(run_.version));
    if (!run_.command.empty()) text += fmt::format(": <code>{}</code>", escape_html(run_.command));
    if (!run_.resumed_from.empty()) text += ", resumed from " + escape_html(run_.resumed_from);
    if (!ended_.samples.empty()) text += "</p>\n<p>By its ledger, " + escape_html(ended_.samples);
    return text + "</p>\n";
  }

  std::string tiles() const {
    auto tile = [](const std::string& value, const std::string& name) {
      return fmt::format("<div class=\"card\"><b>{}</b><span>{}</span></div>", value, name);
    };
    std::string text = "<div class=\"tiles\">";
    if (!test_score_.y.empty()) {
      const std::string name = escape_html(metric().in_full());
      auto at = [&](size_t i) { return fmt::format("<span class=\"whole\">{}</span>", when_[i]); };
      const size_t last = when_.size() - 1;
      if (std::optional<double> score = tested())
        text += tile(in_words(*score), fmt::format("{} on {} test {}, evaluated once, with the best weights", name,
                                                   grouped(run_.test_samples), run_.unit));
      text += tile(in_words(test_score_.y.back()), fmt::format("last {} on {}, {}", name, run_.chosen_on(), at(last)));
      text += tile(in_words(test_score_.y[best()]),
                   fmt::format("best {}, {}, chosen on {}", name, at(best()),
                               run_.validates() ? "the validation " + run_.unit : "the same test " + run_.unit));
      for (size_t i = 1; i < last_.scores.size(); ++i)
        if (const Score& one = last_.scores[i]; one.metric.shown)
          text += tile(value_in_words(one.metric, one.value),
                       fmt::format("last {} on the {} {}, {}", escape_html(one.metric.in_words()), name_of(last_.on),
                                   run_.unit, at(last)));
      if (!run_.metrics.empty())
        text += tile(value_text(test_loss_.y.back(), Numbers::loss),
                     fmt::format("last {} loss, {}", evaluated_on(), at(last)));
    }
    std::vector<double> speeds = speed_.y;
    std::sort(speeds.begin(), speeds.end());
    if (!speeds.empty())
      text += tile(value_text(speeds[speeds.size() / 2], Numbers::count), run_.unit + " a second (median)");
    text += tile(grouped(run_.parameters), "parameters");
    if (ended_.seconds > 0)
      text += tile(duration(ended_.seconds), ended_.interrupted ? "until it was stopped" : "from beginning to end");
    return text + "</div>\n";
  }

  // The test curve with its best and its last point named, on the side where the training curve is not.
  static Curve judged(Curve curve, size_t best, Numbers numbers, bool is_loss) {
    if (curve.y.empty()) return curve;
    const std::string name = is_loss ? "lowest" : "best";
    auto mark = [&](size_t i, const std::string& named, double away) {
      const std::string text = fmt::format("{} {}", named, value_text(curve.y[i], numbers));
      curve.marks.push_back({curve.x[i], curve.y[i], text, is_loss ? away : -away - 9});
    };
    const size_t last = curve.y.size() - 1;
    const bool near = curve.x[last] - curve.x[best] < 0.3 * curve.x[last];
    mark(best, best == last ? name + " and last" : name, best != last && near ? 23 : 9);
    if (best != last) mark(last, "last", 9);
    return curve;
  }

  size_t lowest_loss() const {
    return static_cast<size_t>(std::min_element(test_loss_.y.begin(), test_loss_.y.end()) - test_loss_.y.begin());
  }

  std::string charts() const {
    auto card = [](const std::string& chart) { return chart.empty() ? "" : "<div class=\"card\">" + chart + "</div>"; };
    std::vector<Curve> times{computing_, data_wait_};
    if (run_.ranks > 1) times.push_back(communication_);
    return "<h2>Curves</h2>" + overfitting() + "<div class=\"charts\">" +
           card(draw_chart({train_loss_, judged(test_loss_, lowest_loss(), Numbers::loss, true)},
                           {"loss", "step", Numbers::loss, true})) +
           (run_.metrics.empty() ? ""
                                 : card(draw_chart({train_score_, judged(test_score_, best(), numbers(), false)},
                                                   {metric().on_a_chart(), "step", numbers()}))) +
           card(draw_chart({rate_}, {"learning rate", "step", Numbers::plain, true})) +
           card(draw_chart({speed_}, {run_.unit + " a second", "step", Numbers::count})) +
           card(draw_chart(times, {"where the time goes", "step", Numbers::share})) + "</div>\n";
  }

  std::string schedule() const {
    return !run_.schedule ? ""
                          : "<h2>What each stage does when</h2><div class=\"card scroll\">" +
                                draw_schedule(*run_.schedule) + "</div>\n";
  }

  std::string memory_of_a_step() const {
    if (memory_.devices.empty()) return {};
    std::string text = "<h2>Memory of a step</h2>";
    for (const std::string& line : memory_.budget) text += fmt::format("<p>{}</p>", escape_html(line));
    for (const StepMemory& device : memory_.devices)
      text += "<div class=\"card scroll\">" + draw_memory(device) + "</div>\n";
    return text;
  }

  // Where the test loss has risen for long enough while the training loss fell.
  std::string overfitting() const {
    constexpr double kRise = 1.05;
    if (test_loss_.y.size() < 2 || train_loss_.y.empty()) return {};
    const size_t lowest = lowest_loss();
    if (!(test_loss_.y.back() > kRise * test_loss_.y[lowest])) return {};
    auto then = std::lower_bound(train_loss_.x.begin(), train_loss_.x.end(), test_loss_.x[lowest]);
    const auto place = static_cast<size_t>(std::min(then, train_loss_.x.end() - 1) - train_loss_.x.begin());
    if (!(train_loss_.y.back() < train_loss_.y[place])) return {};
    return fmt::format(
        "<p class=\"card\">Overfitting: the {} loss was lowest in {} ({}) and is {} now, while the training loss "
        "still fell. More data, augmentation, weight_decay or fewer epochs help.</p>",
        evaluated_on(), when_[lowest], value_text(test_loss_.y[lowest], Numbers::loss),
        value_text(test_loss_.y.back(), Numbers::loss));
  }

  // For whom the ranks wait: the one that waits least itself. The first report is of compiling.
  std::string waiting() const {
    if (waits_.size() < 2) return {};
    std::vector<double> means(waits_.back().size());
    size_t counted = 0;
    for (size_t i = 1; i < waits_.size(); ++i) {
      if (waits_[i].size() != means.size()) continue;  // before a resume there were more or fewer
      ++counted;
      for (size_t rank = 0; rank < means.size(); ++rank) means[rank] += waits_[i][rank];
    }
    std::string text =
        "<h2>Waiting for communication</h2><div class=\"card fit scroll\"><table class=\"lines "
        "left\"><tr><th>rank</th>";
    for (size_t rank = 0; rank < means.size(); ++rank) text += fmt::format("<th>{}</th>", rank);
    text += "</tr><tr><td>share of its time</td>";
    for (double sum : means) text += fmt::format("<td>{}</td>", percent(sum / static_cast<double>(counted)));
    const auto [least, most] = std::minmax_element(means.begin(), means.end());
    text += "</tr></table></div>";
    if (*most - *least > 0.1 * static_cast<double>(counted))
      text += fmt::format("<p>Rank {} waits least: the others wait for it.</p>", least - means.begin());
    return text + "\n";
  }

  // Layers, and what one sample costs in each.
  std::string layers() const {
    if (run_.layers.empty()) return {};
    std::string text =
        "<h2>The model: one sample, forward</h2><div class=\"card scroll\"><table class=\"lines left "
        "layers\"><tr><th>layer</th>"
        "<th>output</th><th>parameters</th><th>MFLOP</th><th>kB kept</th><th>ops</th></tr>\n";
    auto row = [&](const std::string& name, const std::string& output, const ModelRow& of) {
      text += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                          escape_html(name), output, grouped(of.parameters), grouped(of.operations * 1e-6, 2),
                          grouped(of.bytes * 1e-3, 1), escape_html(of.ops));
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

  const std::string& class_name(int64_t label) const { return run_.class_names.at(static_cast<size_t>(label)); }

  std::string predictions() const {
    if (last_.predictions.empty()) return {};
    const bool any_wrong = last_.predictions[0].predicted != last_.predictions[0].label;
    const bool pictures = !last_.predictions[0].image.bytes.empty();
    std::string text =
        fmt::format("<h2>{} {}{}, {}</h2>", last_.on == EvaluationReport::On::test ? "Test" : "Validation",
                    escape_html(run_.unit), any_wrong ? ": the most confident errors first" : "", when_of(last_));
    text += pictures ? "<div class=\"pictures\">"
                     : "<div class=\"card fit scroll\"><table class=\"lines left\">"
                       "<tr><th>sample</th><th>taken for</th></tr>\n";
    for (const Prediction& p : last_.predictions) text += pictures ? picture(p) : line(p);
    return text + (pictures ? "</div>\n" : "</table></div>\n");
  }

  std::string taken_for(const Prediction& p) const {
    std::string text = fmt::format("{} <span class=\"whole\">({})</span>", escape_html(class_name(p.predicted)),
                                   whole_percent(p.probability));
    if (p.predicted == p.label) return text;
    return fmt::format("<span class=\"wrong\">{}</span>, is {}", text, escape_html(class_name(p.label)));
  }
  std::string picture(const Prediction& p) const {
    return fmt::format(
        "<figure class=\"card\"><img alt=\"{} image {}\" "
        "src=\"data:image/png;base64,{}\"><figcaption>{}</figcaption></figure>\n",
        name_of(last_.on), p.index, encode_base64(encoded_small(p.image)), taken_for(p));
  }
  std::string line(const Prediction& p) const {
    return fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", escape_html(p.words), taken_for(p));
  }

  // A model that says 95 % should be wrong one time in twenty.
  std::string confidence() const {
    if (last_.by_confidence.empty()) return {};
    std::string text = fmt::format(
        "<h2>Errors by confidence, {}</h2><div class=\"card fit scroll\"><table class=\"lines "
        "left\"><tr><th>confidence</th><th>predictions</th><th>errors</th><th>share</th></tr>\n",
        when_of(last_));
    for (size_t i = last_.by_confidence.size(); i-- > 0;) {
      const int64_t all = last_.by_confidence[i], wrong = last_.wrong_by_confidence[i];
      if (all == 0) continue;
      text += fmt::format("<tr><td>{} to {} %</td><td>{}</td><td>{}</td><td>{}</td></tr>\n", 10 * i, 10 * (i + 1),
                          grouped(all), grouped(wrong), percent(static_cast<double>(wrong) / static_cast<double>(all)));
    }
    return text + "</table></div>\n";
  }

  std::span<const int64_t> counts_of(size_t label) const {
    const size_t classes = run_.class_names.size();
    return std::span(last_.confusion).subspan(label * classes, classes);
  }
  double share_of(size_t label, size_t predicted) const {  // of all with that label
    const auto counts = counts_of(label);
    const auto all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    return all == 0 ? 0 : static_cast<double>(counts[predicted]) / static_cast<double>(all);
  }
  bool has_labels(size_t label) const {
    const auto counts = counts_of(label);
    return std::any_of(counts.begin(), counts.end(), [](int64_t count) { return count > 0; });
  }
  std::string recall_of(size_t label) const { return has_labels(label) ? percent(share_of(label, label)) : "–"; }

  // The more often a class is taken for another, the stronger the colour; what is right has none.
  std::string confusion() const {
    const size_t classes = run_.class_names.size();
    if (classes > kMostInMatrix || classes == 0 || last_.confusion.size() != classes * classes) return {};
    double largest = 0;
    for (size_t row = 0; row < classes; ++row)
      for (size_t column = 0; column < classes; ++column)
        if (row != column) largest = std::max(largest, share_of(row, column));
    std::string text = fmt::format(
        "<h2>Confusion matrix, {}</h2><div class=\"card fit scroll\"><table class=\"confusion "
        "left\"><tr><th>label \\ predicted</th>",
        when_of(last_));
    for (const std::string& name : run_.class_names)
      text += fmt::format("<th{}>{}</th>", name.size() > 4 ? " class=\"upright\"" : "", escape_html(name));
    text += "<th>recall</th>";
    for (size_t row = 0; row < classes; ++row) {
      text += fmt::format("</tr>\n<tr><th>{}</th>", escape_html(run_.class_names[row]));
      for (size_t column = 0; column < classes; ++column) {
        const int64_t count = counts_of(row)[column];
        const double strength = row == column || count == 0 ? 0 : 0.1 + 0.7 * share_of(row, column) / largest;
        text += fmt::format("<td{}>{}</td>",
                            row == column  ? " class=\"right\""
                            : strength > 0 ? fmt::format(" style=\"background: rgba(var(--heat), {:.3f})\"", strength)
                                           : "",
                            count > 0 ? grouped(count) : "");
      }
      text += fmt::format("<td>{}</td>", recall_of(row));
    }
    return text + "</tr></table></div>\n";
  }

  // Where a matrix would be too large: the classes that are recognised least.
  std::string lowest_recalls() const {
    constexpr size_t kShown = 20;
    const size_t classes = run_.class_names.size();
    if (classes <= kMostInMatrix || last_.confusion.size() != classes * classes) return {};
    std::vector<size_t> order;
    for (size_t i = 0; i < classes; ++i)
      if (has_labels(i)) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return share_of(a, a) < share_of(b, b); });
    std::string text = fmt::format(
        "<h2>Recall by class, {}: the lowest of {}</h2><div class=\"card fit scroll\"><table class=\"lines "
        "left\"><tr><th>class</th><th>recall</th><th>most often taken for</th></tr>\n",
        when_of(last_), grouped(static_cast<int64_t>(classes)));
    for (size_t label : std::span(order).first(std::min(kShown, order.size()))) {
      size_t other = label == 0 ? 1 : 0;
      for (size_t i = 0; i < classes; ++i)
        if (i != label && counts_of(label)[i] > counts_of(label)[other]) other = i;
      text += fmt::format(
          "<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n", escape_html(run_.class_names[label]), recall_of(label),
          counts_of(label)[other] == 0
              ? ""
              : fmt::format("{} ({})", escape_html(run_.class_names[other]), percent(share_of(label, other))));
    }
    return text + "</table></div>\n";
  }

  std::string details() const {
    auto fold = [](const char* title, const std::string& text) {
      if (text.empty()) return std::string();
      return fmt::format("<details class=\"card\"><summary>{}</summary><pre>{}</pre></details>\n", title,
                         escape_html(text));
    };
    return fold("The model as a tree", run_.modules) + fold("Every setting of this run", run_.config);
  }

  static constexpr size_t kMostInMatrix = 40;  // classes

  MemoryReport memory_;
  RunBegins run_;
  EvaluationReport last_;
  RunEnds ended_;
  std::string started_, warning_, failure_;  // the last: why the page was not written
  Curve train_loss_, test_loss_, train_score_, test_score_, rate_, speed_, computing_, data_wait_, communication_;
  std::vector<std::string> when_;           // of the evaluations: "epoch 3"
  std::vector<std::vector<double>> waits_;  // [reports][ranks]
};

}  // namespace

std::unique_ptr<Reporter> report_page() { return std::make_unique<ReportPage>(); }

}  // namespace bonfire::train
