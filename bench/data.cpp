// How fast data comes, beside torchvision's DataLoader: all in turn, several rounds, medians.
//
//   bench_data [--peer-python PYTHON] [--json FILE] [--case TEXT] [--rounds N] [--seconds S]
//              [--pictures FOLDER]
//
// Each side runs in a process of its own, pinned to one core, that sleeps while the others have their turn. Pictures
// are made here: 500 × 375, clouds of many sizes with grain and edges, as large as JPEG files of photographs are;
// or they are those of FOLDER, CLASS/NAME.jpg.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/base/random.h"
#include "bonfire/data/glyphs.h"
#include "bonfire/data/image_folder.h"
#include "bonfire/data/jpeg_writer.h"
#include "bonfire/data/loader.h"
#include "bonfire/data/pack.h"
#include "bonfire/data/records.h"
#include "bonfire/data/transforms.h"
#include "bonfire/train/trainer.h"
#include "measure.h"
#include "tests/support/scratch_folder.h"

namespace {

using namespace bonfire;
namespace fs = std::filesystem;
using bonfire::testing::ScratchFolder;

// --- pictures --------------------------------------------------------------------------------------------------------

constexpr int kHeight = 375, kWidth = 500, kPictures = 128, kClasses = 4;

// Adds noise of one size, smooth between the points of a grid, to the values [kHeight, kWidth].
void add_cloud(std::vector<float>& values, uint64_t seed, int size, float strength) {
  auto at = [&](int row, int column) {
    return strength * (uniform_at(seed, static_cast<uint64_t>(row), static_cast<uint64_t>(column)) - 0.5F);
  };
  auto smooth = [size](int offset) {
    float t = static_cast<float>(offset) / static_cast<float>(size);
    return t * t * (3 - 2 * t);
  };
  for (int top = 0; top < kHeight; top += size)
    for (int left = 0; left < kWidth; left += size) {
      float a = at(top / size, left / size), b = at(top / size, left / size + 1);
      float c = at(top / size + 1, left / size), d = at(top / size + 1, left / size + 1);
      for (int y = top; y < std::min(top + size, kHeight); ++y)
        for (int x = left; x < std::min(left + size, kWidth); ++x) {
          float down = smooth(y - top), across = smooth(x - left);
          values[static_cast<size_t>(y) * kWidth + static_cast<size_t>(x)] +=
              (a * (1 - across) + b * across) * (1 - down) + (c * (1 - across) + d * across) * down;
        }
    }
}

data::Array picture(uint64_t number) {
  std::vector<float> light(kHeight * kWidth, 120), red(light.size()), blue(light.size()), depth(light.size());
  for (int size : {128, 32, 8, 2}) add_cloud(light, number * 8, size, 9 * std::sqrt(static_cast<float>(size)));
  for (int size : {128, 32}) {
    add_cloud(red, number * 8 + 1, size, 4 * std::sqrt(static_cast<float>(size)));
    add_cloud(blue, number * 8 + 2, size, 4 * std::sqrt(static_cast<float>(size)));
  }
  add_cloud(depth, number * 8 + 3, 90, 1);
  data::Array image{DType::u8, {kHeight, kWidth, 3}, {}};
  for (size_t i = 0; i < light.size(); ++i) {
    if (depth[i] > 0.08F) light[i] = light[i] * 0.6F + 90;  // things in front of others
    light[i] += 16 * (uniform_at(number * 8 + 4, 0, i) - 0.5F);
    for (float value : {light[i] + red[i], light[i], light[i] + blue[i]})
      image.bytes.push_back(static_cast<std::byte>(std::min(255.0F, std::max(0.0F, value))));
  }
  return image;
}

// A folder of pictures.
class PictureFolder {
 public:
  PictureFolder() {
    size_t bytes = 0;
    for (int i = 0; i < kPictures; ++i) {
      fs::path folder = path() / fmt::format("class{}", i % kClasses), file = folder / fmt::format("{:03}.jpg", i);
      fs::create_directories(folder);
      std::vector<std::byte> jpeg = data::encode_jpeg(picture(static_cast<uint64_t>(i)), 92);
      std::ofstream(file, std::ios::binary)
          .write(reinterpret_cast<const char*>(jpeg.data()), static_cast<std::streamsize>(jpeg.size()));
      bytes += jpeg.size();
    }
    std::printf("%d JPEG files of %d x %d, %.0f kB each\n", kPictures, kWidth, kHeight,
                static_cast<double>(bytes) / kPictures / 1000);
  }
  const fs::path& path() const { return folder_.path(); }

 private:
  ScratchFolder folder_;
};

// --- what is measured ------------------------------------------------------------------------------------------------

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }  // of all threads

// Answers each line of input, a number of seconds, with images a second: RandomResizedCrop 224, flip, batches of 64.
int serve_pictures(const fs::path& folder) {
  std::shared_ptr<const data::Dataset> pictures;
  if (data::is_records(folder))
    pictures = data::load_records(folder, data::Split::train);
  else
    pictures = data::load_image_folders(folder, folder).train;
  data::DataLoader loader(pictures, {.batch_size = 64,
                                     .shuffle = true,
                                     .drop_last = true,
                                     .num_workers = 1,
                                     .transform = data::random_resized_crop({.size = 224, .flip = 0.5})});
  for (double seconds = 0; std::cin >> seconds;) {
    double images = 0, begin = processor_seconds();
    while (images == 0 || processor_seconds() - begin < seconds)
      images += static_cast<double>(loader.next().input.size(0));
    std::cout << images / (processor_seconds() - begin) << std::endl;
  }
  return 0;
}

struct Settings {
  std::string self, peer, json, only, pictures, seconds = "1";
  int rounds = 5;
};

// A side of a comparison: what it is called, and the process that answers for it.
struct Side {
  std::string name, command;
};

// Median answers of all sides, each asked once a round.
std::vector<double> in_turn(const Settings& settings, const std::vector<Side>& sides) {
  std::vector<std::unique_ptr<bench::Worker>> workers;
  for (const Side& side : sides) workers.push_back(std::make_unique<bench::Worker>("taskset -c 0 " + side.command));
  std::vector<std::vector<double>> answers(sides.size());
  for (int round = 0; round <= settings.rounds; ++round)
    for (size_t i = 0; i < sides.size(); ++i) {
      double answer = workers[i]->ask(settings.seconds);
      if (round > 0) answers[i].push_back(answer);  // the first is for caches
    }
  std::vector<double> medians;
  for (const std::vector<double>& one : answers) medians.push_back(bench::median(one));
  return medians;
}

void add_row(nlohmann::json& rows, const std::string& title, const std::string& peer, double ours, double theirs,
             double goal) {
  double ratio = theirs > 0 ? ours / theirs : 0;
  std::printf("%-58s %9.1f %-28s %9.1f  ratio %5.2f  goal >= %.2f  %s\n", title.c_str(), ours, peer.c_str(), theirs,
              ratio, goal,
              theirs == 0     ? "no peer"
              : ratio >= goal ? "reached"
                              : "NOT reached");
  std::fflush(stdout);
  rows.push_back({{"case", title},
                  {"unit", "images/s"},
                  {"ours", ours},
                  {"peer", theirs},
                  {"peer_name", peer},
                  {"ratio", ratio},
                  {"goal", goal}});
}

void measure_pictures(const Settings& settings, nlohmann::json& rows) {
  std::optional<PictureFolder> made;
  if (settings.pictures.empty()) made.emplace();
  std::string where = made ? made->path().string() : settings.pictures;
  std::vector<Side> sides{{"Bonfire", fmt::format("{} --serve pictures {}", settings.self, where)}};
  std::string peer = settings.peer + " " BONFIRE_SOURCE_DIR "/bench/peers/data.py " + where + " ";
  if (!settings.peer.empty())
    for (const char* how : {"pil", "decode_jpeg"}) sides.push_back({how, peer + how});
  std::vector<double> speeds = in_turn(settings, sides);
  const std::string title = "JPEG folder, RandomResizedCrop 224, flip, batch; one core";
  speeds.resize(3);
  add_row(rows, title, "DataLoader with PIL", speeds[0], speeds[1], 2);
  add_row(rows, title, "DataLoader with decode_jpeg", speeds[0], speeds[2], 1.2);
}

// The same pictures in record shards, beside the folder; and packed with a short side of 256 pixels.
void measure_records(const Settings& settings, nlohmann::json& rows) {
  std::optional<PictureFolder> made;
  if (settings.pictures.empty()) made.emplace();
  ScratchFolder scratch;
  fs::path where = made ? made->path() : fs::path(settings.pictures), packed = scratch.path() / "packed",
           smaller = scratch.path() / "smaller";
  data::pack(where, packed);
  data::pack(where, smaller, {.resize = 256});
  std::vector<Side> sides;
  for (const fs::path& folder : {where, packed, smaller})
    sides.push_back({folder.string(), fmt::format("{} --serve pictures {}", settings.self, folder.string())});
  std::vector<double> speeds = in_turn(settings, sides);
  add_row(rows, "record shards, the same", "our folder reader", speeds[1], speeds[0], 1.1);
  add_row(rows, "record shards packed with --resize 256, the same", "our folder reader", speeds[2], speeds[0], 1.1);
}

// MNIST's files: 60,000 of our glyphs, each twenty times.
void write_mnist(const fs::path& folder) {
  constexpr int64_t kGlyphs = 3000, kTimes = 20;
  data::Glyphs glyphs({.size = kGlyphs});
  for (const auto& [part, times] : {std::pair("train", kTimes), std::pair("t10k", int64_t{1})}) {
    std::ofstream images(folder / fmt::format("{}-images-idx3-ubyte", part), std::ios::binary);
    std::ofstream labels(folder / fmt::format("{}-labels-idx1-ubyte", part), std::ios::binary);
    auto put_header = [](std::ofstream& file, const std::vector<int64_t>& shape) {
      file << std::string("\0\0\x08", 3) << static_cast<char>(shape.size());
      for (int64_t extent : shape)
        for (int shift = 24; shift >= 0; shift -= 8) file << static_cast<char>(extent >> shift);
    };
    put_header(images, {kGlyphs * times, 28, 28});
    put_header(labels, {kGlyphs * times});
    for (int64_t i = 0; i < kGlyphs * times; ++i) {
      data::Sample sample = glyphs.get(i % kGlyphs);
      images.write(reinterpret_cast<const char*>(sample.input.bytes.data()), 28 * 28);
      labels << static_cast<char>(data::label_of(sample));
    }
  }
}

// The share of the time that the steps after the first reports waited for data.
class WaitReporter final : public train::Reporter {
 public:
  explicit WaitReporter(std::vector<double>& shares) : shares_(shares) {}
  void begin(const train::RunBegins&) override {}
  void step(const train::StepReport& report) override {
    if (reports_++ > 0) shares_.push_back(report.data_wait);  // the first steps are compiled
  }
  void evaluated(const train::EvaluationReport&) override {}
  void note(const std::string&) override {}
  void end(const train::RunEnds&) override {}

 private:
  std::vector<double>& shares_;
  int reports_ = 0;
};

void measure_wait(const Settings&, nlohmann::json& rows) {
  ScratchFolder folder;
  write_mnist(folder.path());
  train::Trainer trainer(train::default_config(
      std::vector<std::string>{"data=" + folder.path().string(), "output=" + (folder.path() / "runs").string(),
                               "place=cpu", "limit=32000", "epochs=1", "log_freq=50"}));
  std::vector<double> shares;
  trainer.add(std::make_unique<WaitReporter>(shares));
  trainer.run();
  double mean = 0;
  for (double share : shares) mean += share / static_cast<double>(shares.size());
  constexpr double kGoal = 0.02;
  const char* title = "MNIST through the loader while training the CNN";
  std::printf("%-58s data wait %.3f %% of the step, at most %.3f %% of 50 steps  goal < 2 %%  %s\n", title, 100 * mean,
              100 * *std::max_element(shares.begin(), shares.end()), mean < kGoal ? "reached" : "NOT reached");
  rows.push_back({{"case", title}, {"unit", "share of the step"}, {"ours", mean}, {"goal", kGoal}});
}

struct Case {
  std::string name;
  void (*measure)(const Settings&, nlohmann::json& rows);
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"pictures", measure_pictures}, {"records", measure_records}, {"wait", measure_wait}};
  return all;
}

int run_all(const Settings& settings) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Case& one : cases())
    if (one.name.find(settings.only) != std::string::npos) one.measure(settings, rows);
  if (!settings.json.empty()) std::ofstream(settings.json) << rows.dump(1) << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (arguments.size() == 3 && arguments[0] == "--serve" && arguments[1] == "pictures")
      return serve_pictures(arguments[2]);
    Settings settings;
    settings.self = argv[0];
    CLI::App flags("Reading and transforming samples, beside PyTorch's loader", "bench_data");
    flags.add_option("--peer-python", settings.peer, "a Python that has PyTorch");
    flags.add_option("--json", settings.json, "a file for what was measured");
    flags.add_option("--case", settings.only, "cases whose name has this in it");
    flags.add_option("--pictures", settings.pictures, "a folder of JPEG files, in place of drawn ones");
    flags.add_option("--rounds", settings.rounds, "turns of each contestant")->check(CLI::PositiveNumber);
    flags.add_option("--seconds", settings.seconds, "of one turn");
    CLI11_PARSE(flags, argc, argv);
    return run_all(settings);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
