#include <gtest/gtest.h>
#include <zlib.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <span>

#include "bonfire/train/chart.h"
#include "bonfire/train/png.h"
#include "bonfire/train/reporter.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::train::report_page_test {
namespace {

using bonfire::testing::ScratchFolder;

TEST(Png, HoldsThePixelsRowByRow) {
  std::string grey(6, '\0');
  for (size_t i = 0; i < grey.size(); ++i) grey[i] = static_cast<char>(40 * i);
  std::string png = encode_png(std::as_bytes(std::span<const char>(grey)), {2, 3, 1});
  EXPECT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
  EXPECT_EQ(png.substr(12, 4), "IHDR");
  EXPECT_EQ(png.substr(16, 8), std::string("\0\0\0\3\0\0\0\2", 8));  // width, height
  size_t data = png.find("IDAT") + 4;
  std::string rows(8, '\1');
  uLongf size = rows.size();
  ASSERT_EQ(uncompress(reinterpret_cast<Bytef*>(rows.data()), &size, reinterpret_cast<const Bytef*>(png.data() + data),
                       png.size() - data),
            Z_OK);
  EXPECT_EQ(rows, std::string(1, '\0') + grey.substr(0, 3) + std::string(1, '\0') + grey.substr(3));
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

TEST(Chart, LeavesOutWhatIsNotANumberAndEscapesNames) {
  std::string svg = draw_chart({{"<a>", {1, 2, 3}, {1, NAN, 3}}, {"b", {1}, {2}}}, {"loss & more", "step"});
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
  run.config = "lr: 0.1";
  run.layers = {{"conv1", "conv2d", {1, 6, 28, 28}, 156, 2.4e6, 18816}, {"fc", "matmul", {1, 2}, 40, 1e6, 8}};
  EvaluationReport evaluation{.epoch = 1, .step = 20, .loss = 0.5, .top1 = 0.75, .top5 = 1, .best = true};
  evaluation.confusion = {3, 1, 0, 4};
  evaluation.predictions.push_back({7, 0, 1, 0.6, {DType::u8, {1, 1, 1}, std::vector<std::byte>(1)}});
  // A large image becomes a small one.
  evaluation.predictions.push_back(
      {8, 0, 0, 0.9, {DType::u8, {300, 200, 3}, std::vector<std::byte>(300 * 200 * 3, std::byte{9})}});
  std::string small_head = encode_png(std::vector<std::byte>(112 * 74 * 3), {112, 74, 3}).substr(0, 33);
  for (auto* reporter : {log.get(), page.get()}) {
    reporter->begin(run);
    reporter->step({.epoch = 1, .step = 10, .loss = 2, .top1 = 0.5, .lr = 0.1, .samples_per_second = 100});
    reporter->step({.epoch = 1, .step = 20, .loss = 1, .top1 = 0.6, .lr = 0.1, .samples_per_second = 200});
    reporter->evaluated(evaluation);
    reporter->end({.seconds = 12});
  }
  std::string html = folder.get("report.html");
  for (const char* part : {"a&lt;b", "75.00 %", "<polyline", "data:image/png;base64,", "is cat", ">dog</th>", "lr: 0.1",
                           "<td>conv1</td><td>[1, 6, 28, 28]</td><td>156</td><td>2.40</td><td>18.8</td><td>conv2d</td>",
                           "<td>all</td><td></td><td>196</td><td>3.40</td>", "where the time goes"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  EXPECT_NE(html.find(encode_base64(small_head)), std::string::npos);
  EXPECT_EQ(html.find("http"), std::string::npos);
  EXPECT_EQ(html.find("<script"), std::string::npos);
}

// Reads the file as TensorBoard would: lengths, and the messages they frame.
TEST(TensorBoardLog, IsARowOfRecordsWithTagsStepsAndValues) {
  ScratchFolder folder;
  auto log = tensorboard_log();
  log->begin({.folder = folder.path(), .model = "m", .data = "d", .place = "cpu:0"});
  log->step({.epoch = 1, .step = 300, .loss = 0.25, .top1 = 0.5, .lr = 0.1, .samples_per_second = 100});
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
  EXPECT_EQ(events[1].substr(9), expected);  // behind the time: step 300, tag, 0.25
}

}  // namespace
}  // namespace bonfire::train::report_page_test
