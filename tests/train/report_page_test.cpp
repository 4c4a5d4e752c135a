#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <span>

#include "bonfire/data/image_reader.h"
#include "bonfire/train/report/chart.h"
#include "bonfire/train/report/memory_chart.h"
#include "bonfire/train/report/png.h"
#include "bonfire/train/report/reporter.h"
#include "bonfire/train/tasks/class_judge.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::train::report_page_test {
namespace {

using bonfire::testing::ScratchFolder;

std::vector<Score> scores(double top1, std::optional<double> top5 = {}, int64_t classes = 100) {
  const std::vector<Metric> metrics = class_metrics(classes);
  std::vector<Score> all{{metrics[0], top1}};
  if (top5) all.push_back({metrics[1], *top5});
  return all;
}

TEST(Png, HoldsThePixelsRowByRow) {
  std::string grey(6, '\0');
  for (size_t i = 0; i < grey.size(); ++i) grey[i] = static_cast<char>(40 * i);
  std::string png = encode_png(std::as_bytes(std::span<const char>(grey)), {2, 3, 1});
  EXPECT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
  EXPECT_EQ(png.substr(12, 4), "IHDR");
  EXPECT_EQ(png.substr(16, 8), std::string("\0\0\0\3\0\0\0\2", 8));  // width, height
  const data::Array back = data::decode_image(std::as_bytes(std::span<const char>(png)), "grey.png");
  EXPECT_EQ(back.shape, Shape({2, 3, 3}));
  for (size_t i = 0; i < back.bytes.size(); ++i)  // each channel
    EXPECT_EQ(static_cast<char>(back.bytes[i]), grey[i / 3]);
}

TEST(Png, Base64IsPadded) {
  EXPECT_EQ(encode_base64(""), "");
  EXPECT_EQ(encode_base64("f"), "Zg==");
  EXPECT_EQ(encode_base64("fo"), "Zm8=");
  EXPECT_EQ(encode_base64("foo"), "Zm9v");
  EXPECT_EQ(encode_base64("foob"), "Zm9vYg==");
}

TEST(Chart, TicksAreFewRoundAndCoverTheRange) {
  EXPECT_EQ(ticks(0, 1), (std::vector<double>{0, 0.2, 0.4, 0.6000000000000001, 0.8, 1}));
  for (auto [low, high] : {std::pair(0.013, 0.0131), {-5.0, 1e6}, {0.02, 0.02}, {0.0, 0.0}}) {
    std::vector<double> places = ticks(low, high);
    EXPECT_LE(places.front(), low + 1e-12);
    EXPECT_GE(places.back(), high - 1e-12);
    EXPECT_GE(places.size(), 2U);
    EXPECT_LE(places.size(), 8U);
  }
}

TEST(Chart, LogarithmicTicksCoverTheRange) {
  EXPECT_EQ(log_ticks(0.3, 4), (std::vector<double>{0.2, 0.5, 1, 2, 5}));
  EXPECT_EQ(log_ticks(0.001, 10), (std::vector<double>{0.001, 0.01, 0.1, 1, 10}));
  for (auto [low, high] : {std::pair(0.013, 0.0131), {1e-9, 1e6}, {1.0, 1.0}, {2.0, 5.0}, {0.7, 0.9}}) {
    std::vector<double> places = log_ticks(low, high);
    EXPECT_LE(places.front(), low * (1 + 1e-9)) << low;
    EXPECT_GE(places.back(), high * (1 - 1e-9)) << low;
    EXPECT_GE(places.size(), 2U) << low;
    EXPECT_LE(places.size(), 8U) << low;
  }
}

TEST(Chart, OffersALogScaleWhereAllValuesHaveALogarithm) {
  const ChartOptions options{"loss", "step", Numbers::loss, true};
  const std::string both = draw_chart({{"a", {1, 2}, {0.5, 0.25}}}, options);
  EXPECT_NE(both.find("<svg class=\"linear\""), std::string::npos);
  EXPECT_NE(both.find("<svg class=\"log\""), std::string::npos);
  EXPECT_NE(both.find("log scale"), std::string::npos);
  EXPECT_EQ(draw_chart({{"a", {1, 2}, {0.5, 0}}}, options).find("log scale"), std::string::npos);
  EXPECT_EQ(draw_chart({{"a", {1, 2}, {0.5, 0.5}}}, options).find("log scale"), std::string::npos);
}

TEST(Chart, HasTheValuesForThePointerBesideTheCurve) {
  const std::string svg = draw_chart({{"a", {1, 2000}, {0.5, 0.25}}}, {"accuracy", "step", Numbers::share});
  EXPECT_NE(svg.find("data-name=\"a\" data-steps=\"1|2,000\" data-values=\"50.00 %|25.00 %\""), std::string::npos)
      << svg;
}

// Of 100,000 points the page would be megabytes. A value far above the others stays.
TEST(Chart, ThinsOutLongCurvesButKeepsTheirPeaks) {
  Curve curve{"a", {}, {}};
  for (int i = 0; i < 100'000; ++i) {
    curve.x.push_back(i);
    curve.y.push_back(i == 77'777 ? 50 : 1 + i % 7 * 0.01);
  }
  const std::string svg = draw_chart({curve}, {"loss", "step", Numbers::loss});
  EXPECT_LT(svg.size(), 100'000U);
  EXPECT_NE(svg.find("|77,777|"), std::string::npos);
  EXPECT_NE(svg.find("|50.0000|"), std::string::npos);
}

TEST(Chart, LeavesOutWhatIsNotANumberAndEscapesNames) {
  std::string svg =
      draw_chart({{"<a>", {1, 2, 3}, {1, NAN, 3}}, {"b", {1}, {2}}, {"none", {}, {}}}, {"loss & more", "step"});
  EXPECT_EQ(svg.find("none"), svg.rfind("none")) << "only in a style, never as a name";
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_NE(svg.find("&lt;a&gt;"), std::string::npos);
  EXPECT_NE(svg.find("loss &amp; more"), std::string::npos);
  EXPECT_EQ(draw_chart({{"nothing", {}, {}}}, {"loss", "step"}), "");
}

TEST(ReportPage, HasCurvesPicturesTheMatrixAndNothingFromOutside) {
  ScratchFolder folder;
  auto log = metrics_log(), page = report_page();
  RunBegins run{.folder = folder.path(), .model = "a<b", .data = "glyphs", .place = "cpu:0"};
  run.class_names = {"cat", "dog"};
  run.metrics = class_metrics(2);
  run.test_samples = 8;
  run.config = "lr: 0.1";
  run.command = "bonfire train lr=0.1";
  run.version = "1.2.3";
  run.layers = {{"conv1", "conv2d", {1, 6, 28, 28}, 156, 2.4e6, 18816}, {"fc", "matmul", {1, 2}, 40, 1e6, 8}};
  EvaluationReport evaluation{.epoch = 1, .step = 20, .loss = 0.5, .scores = scores(0.75, 1, 2), .best = true};
  evaluation.confusion = {3, 1, 0, 4};
  evaluation.by_confidence = {0, 0, 0, 0, 0, 2, 0, 0, 0, 6};
  evaluation.wrong_by_confidence = {0, 0, 0, 0, 0, 1, 0, 0, 0, 0};
  evaluation.predictions.push_back({7, 0, 1, 0.6, {DType::u8, {1, 1, 1}, std::vector<std::byte>(1)}});
  // A large image becomes a small one.
  evaluation.predictions.push_back(
      {8, 0, 0, 0.9, {DType::u8, {300, 200, 3}, std::vector<std::byte>(300 * 200 * 3, std::byte{9})}});
  std::string small_head = encode_png(std::vector<std::byte>(112 * 74 * 3), {112, 74, 3}).substr(0, 33);
  for (auto* reporter : {log.get(), page.get()}) {
    reporter->begin(run);
    reporter->step({.epoch = 1, .step = 10, .loss = 2, .scores = scores(0.5), .lr = 0.1, .samples_per_second = 100});
    reporter->step({.epoch = 1, .step = 20, .loss = 1, .scores = scores(0.6), .lr = 0.1, .samples_per_second = 200});
    reporter->evaluated(evaluation);
    evaluation.epoch = 2;
    evaluation.step = 40;
    evaluation.scores[0].value = 0.5;
    evaluation.loss = 0.8;
    reporter->step({.epoch = 2, .step = 40, .loss = 0.5, .scores = scores(0.7), .lr = 0.1, .samples_per_second = 2000});
    reporter->evaluated(evaluation);
    reporter->end({.seconds = 72});
    evaluation.epoch = 1;
    evaluation.step = 20;
    evaluation.scores[0].value = 0.75;
    evaluation.loss = 0.5;
  }
  std::string html = folder.get("report.html");
  for (const char* part :
       {"a&lt;b",
        "75.00 %",
        "<polyline",
        "data:image/png;base64,",
        "is cat",
        ">dog</th>",
        "lr: 0.1",
        "<title>a&lt;b on glyphs: 50.00 % (Bonfire)</title>",
        "by Bonfire 1.2.3",
        "<code>bonfire train lr=0.1</code>",
        "<b>50.00 %</b><span>last top-1 on 8 test images, <span class=\"whole\">epoch 2</span></span>",
        "<b>75.00 %</b><span>best top-1, <span class=\"whole\">epoch 1</span>, chosen on the same test images</span>",
        "<b>1:12</b>",
        ">best 75.00 %</text>",
        ">last 50.00 %</text>",
        "Overfitting: the test loss was lowest in epoch 1 (0.5000) and is",
        "the most confident errors first",
        "<td>50 to 60 %</td><td>2</td><td>1</td><td>50.00 %</td>",
        "Confusion matrix, epoch 2",
        "<td class=\"right\">3</td>",
        "<td style=\"background: rgba(var(--heat), 0.800)\">1</td><td>75.00 %</td>",
        "<td class=\"right\">4</td><td>100.00 %</td>",
        "<td>conv1</td><td>[1, 6, 28, 28]</td><td>156</td><td>2.40</td><td>18.8</td><td>conv2d</td>",
        "<td>all</td><td></td><td>196</td><td>3.40</td>",
        "where the time goes"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  EXPECT_NE(html.find(encode_base64(small_head)), std::string::npos);
  EXPECT_EQ(html.find("http"), std::string::npos);
  EXPECT_EQ(html.find("top-5"), std::string::npos);                 // of two classes
  EXPECT_EQ(html.find("communication</text>"), std::string::npos);  // on one rank
  EXPECT_EQ(html.find("<script>"), html.rfind("<script"));          // one, in the page itself
  EXPECT_EQ(html.find(" src=\"data:"), html.find(" src="));
}

TEST(ReportPage, DrawsTheScheduleOfStages) {
  ScratchFolder folder;
  const std::unique_ptr<Reporter> page = report_page();
  RunBegins run{.folder = folder.path(), .model = "vgg11", .data = "digits", .place = "cpu:0"};
  run.metrics = class_metrics(10);
  run.schedule =
      pipeline::make_schedule({.kind = pipeline::ScheduleKind::zero_bubble, .stages = 2, .micro_batches = 3});
  page->begin(run);
  page->evaluated({.epoch = 1, .step = 1, .loss = 1, .scores = scores(0.5, {}, 10)});
  const std::string text = folder.get("report.html");
  size_t bars = 0;
  for (size_t at = text.find("<rect class=\"bar c"); at != std::string::npos;
       at = text.find("<rect class=\"bar c", at + 1))
    ++bars;
  EXPECT_EQ(bars, 2U * 3 * 3);  // F, B and W of three micro-batches on two stages
  for (const char* part : {"stage 0</text>", "stage 1</text>", ">F0<", ">B2<", ">W1<", "zero_bubble, 3 micro-batches"})
    EXPECT_NE(text.find(part), std::string::npos) << part;
}

TEST(MemoryChart, ShowsWhatStaysAndEachKindOverTheStep) {
  StepMemory memory;
  memory.parameters = 3'000'000;
  memory.temporaries.bytes = {{1'000'000, 0, 0, 0}, {2'000'000, 500'000, 0, 250'000}, {0, 0, 100'000, 0}};
  memory.temporaries.fullest = 1;
  memory.temporaries.forward_steps = memory.temporaries.backward_steps = 1;
  memory.temporaries.arena = 2'750'000;
  memory.temporaries.largest = {{MemoryKind::activations, 2'000'000, "conv2d", "layer<1>", "f32 [1]"}};
  const std::string chart = draw_memory(memory);
  for (const char* part : {"cpu:0: 5.8 MB in all", "what stays: 3.0 MB", "activations: 2.0 MB", "workspace: 250.0 kB",
                           "update: 100.0 kB", "2.0 MB  layer&lt;1&gt; conv2d", ">backward<"})
    EXPECT_NE(chart.find(part), std::string::npos) << part << "\n" << chart;
}

TEST(ReportPage, OfTextHasNothingThatOnlyImagesHave) {
  ScratchFolder folder;
  auto log = metrics_log(), page = report_page();
  for (auto* reporter : {log.get(), page.get()}) {
    reporter->begin({.folder = folder.path(),
                     .model = "bert_mini",
                     .data = "generated sentences",
                     .place = "cpu:0",
                     .unit = "sequences",
                     .metrics = class_metrics(100, "masked words")});
    reporter->step({.epoch = 1, .step = 10, .loss = 2, .lr = 0.1, .samples_per_second = 100});
    reporter->evaluated({.epoch = 1, .step = 10, .loss = 0.5, .scores = scores(0.75, 1), .best = true});
  }
  std::string html = folder.get("report.html");
  EXPECT_NE(
      html.find("<b>100.00 %</b><span>last top-5 on the test sequences, <span class=\"whole\">epoch 1</span></span>"),
      std::string::npos);
  EXPECT_NE(html.find(">best and last 75.00 %</text>"), std::string::npos);
  for (const char* part : {"Confusion matrix", "Test images", "confidence", "The model", "Every setting", "<h2></h2>",
                           "class=\"card\"></div>", "points=\"\""})
    EXPECT_EQ(html.find(part), std::string::npos) << part;
}

// A matrix of 50 classes would fit no window.
TEST(ReportPage, OfManyClassesListsTheLowestRecalls) {
  ScratchFolder folder;
  auto page = report_page();
  RunBegins run{.folder = folder.path(), .model = "m", .data = "d", .place = "cpu:0", .metrics = class_metrics(50)};
  EvaluationReport evaluation{.epoch = 3, .step = 20, .loss = 0.5, .scores = scores(0.75, 1)};
  evaluation.confusion.resize(50 * 50);
  for (size_t i = 0; i < 50; ++i) {
    run.class_names.push_back("class" + std::to_string(i));
    evaluation.confusion[i * 50 + i] = 10;
  }
  evaluation.confusion[7 * 50 + 9] = 30;
  page->begin(run);
  page->evaluated(evaluation);
  std::string html = folder.get("report.html");
  EXPECT_EQ(html.find("Confusion matrix"), std::string::npos);
  EXPECT_NE(html.find("<tr><td>class7</td><td>25.00 %</td><td>class9 (75.00 %)</td></tr>\n<tr><td>class0</td>"
                      "<td>100.00 %</td><td></td></tr>"),
            std::string::npos);
}

// Reads the file as TensorBoard would: lengths, and the messages they frame.
TEST(TensorBoardLog, IsARowOfRecordsWithTagsStepsAndValues) {
  ScratchFolder folder;
  auto log = tensorboard_log();
  log->begin({.folder = folder.path(), .model = "m", .data = "d", .place = "cpu:0"});
  log->step({.epoch = 1, .step = 300, .loss = 0.25, .scores = scores(0.5), .lr = 0.1, .samples_per_second = 100});
  log->end({});
  std::string file;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    file = folder.get(entry.path().filename().string());
  std::vector<std::string> events;
  for (size_t at = 0; at < file.size();) {
    uint64_t length = 0;
    std::memcpy(&length, file.data() + at, sizeof length);
    events.push_back(file.substr(at + 12, length));
    at += 16 + length;
    ASSERT_LE(at, file.size());
  }
  ASSERT_EQ(events.size(), 7U);
  EXPECT_NE(events[0].find("brain.Event:2"), std::string::npos);
  // The first record has 26 bytes; the checksum of that number is what TensorBoard's own writer has.
  EXPECT_EQ(file.substr(0, 12), std::string("\x1a\0\0\0\0\0\0\0\x12\x9b\xd8\x2d", 12));
  std::string expected =
      std::string("\x10\xac\x02\x2a\x13\x0a\x11\x0a\x0a", 9) + "train/loss" + std::string("\x15\0\0\x80\x3e", 5);
  EXPECT_EQ(events[1].substr(9), expected);  // after the time: step 300, tag, 0.25
}

}  // namespace
}  // namespace bonfire::train::report_page_test
