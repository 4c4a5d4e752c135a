#include "bonfire/train/data/open_data.h"

#include <gtest/gtest.h>

#include "bonfire/base/error.h"
#include "bonfire/nn/safetensors.h"
#include "bonfire/train/trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/image_files.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/digits.h"

namespace bonfire::train::open_data_test {
namespace {

using namespace bonfire::testing;
namespace fs = std::filesystem;

// Two classes: pictures darker and brighter than grey, of all sizes.
void put_pictures(const fs::path& folder, int count) {
  for (int label : {0, 1}) {
    fs::path where = folder / (label == 0 ? "dark" : "light");
    fs::create_directories(where);
    for (int i = 0; i < count; ++i) {
      int height = 30 + 7 * i % 40, width = 60 - 5 * i % 30;
      std::vector<uint8_t> pixels = test_picture(height, width);
      for (uint8_t& value : pixels) value = static_cast<uint8_t>(value / 2 + 127 * label);
      std::string file = i % 3 == 0 ? png_file(pixels, height, width) : jpeg_file(pixels, height, width);
      std::ofstream(where / (std::to_string(i) + (i % 3 == 0 ? ".png" : ".jpg")), std::ios::binary) << file;
    }
  }
}

OpenedData opened(const std::vector<std::string>& settings) { return open_data(default_config(settings)); }

data::Sample trained_on(const OpenedData& data, int64_t index, int64_t epoch = 0) {
  data::Sample sample = data.train->get(index);
  data.train_transform(sample, {1, epoch, index});
  return sample;
}

TEST(OpenData, PicturesAreBroughtToOneSize) {
  ScratchFolder folder;
  put_pictures(folder / "train", 6);
  put_pictures(folder / "val", 2);
  std::string data = "data=" + folder.path().string();
  OpenedData small = opened({data, "image_size=32"});
  EXPECT_EQ(small.image, (Shape{32, 32, 3}));
  EXPECT_EQ(small.class_names, (std::vector<std::string>{"dark", "light"}));
  EXPECT_EQ(small.train->size(), 12);
  EXPECT_EQ(small.test->size(), 4);
  EXPECT_EQ(small.test->get(1).input.shape, small.image);
  EXPECT_EQ(trained_on(small, 3).input.shape, small.image);
  EXPECT_NE(trained_on(small, 3).input.bytes, trained_on(small, 3, 1).input.bytes);
  EXPECT_NEAR(small.mean[0], 0.5, 0.1);
  EXPECT_EQ(opened({data}).image, (Shape{224, 224, 3}));

  OpenedData plain = opened({data, "image_size=32", "crop=none", "flip=0", "mean=[0.485, 0.456, 0.406]"});
  EXPECT_EQ(trained_on(plain, 3).input.bytes, trained_on(plain, 3, 1).input.bytes);
  EXPECT_EQ(plain.mean[2], 0.406F);

  OpenedData split = opened({"train_file=" + (folder / "val").string(), "test_file=" + (folder / "train").string()});
  EXPECT_EQ(split.train->size(), 4);
  EXPECT_EQ(opened({"data=" + (folder / "train").string(), "test_share=0.5"}).test->size(), 6);
}

TEST(OpenData, StoredImagesAreLeftAsTheyAreUnlessAsked) {
  EXPECT_FALSE(opened({}).train_transform);
  OpenedData large = opened({"image_size=40"});
  EXPECT_EQ(large.image, (Shape{40, 40, 1}));
  EXPECT_EQ(large.test->get(0).input.shape, large.image);
  EXPECT_EQ(trained_on(large, 0).input.shape, large.image);
  OpenedData moved = opened({"crop=padded", "flip=0.5", "random_erasing=0.5", "mixup=0.3"});
  EXPECT_EQ(trained_on(moved, 0).input.shape, (Shape{28, 28, 1}));
  EXPECT_EQ(trained_on(moved, 0).label.shape, Shape{10});
  EXPECT_EQ(data::label_of(moved.test->get(0)), data::label_of(opened({}).test->get(0)));
  EXPECT_EQ(trained_on(opened({"crop=resized"}), 0).input.shape, (Shape{28, 28, 1}));
}

TEST(OpenData, PixelsAreMeasuredOnAllTrainingImagesAndItIsSaid) {
  ScratchFolder folder;
  put_digits(folder / "digits");
  const std::string data = "data=" + (folder / "digits").string();
  OpenedData all = opened({data}), some = opened({data, "limit=100"});
  double sum = 0;
  for (int64_t i = 0; i < all.train->size(); ++i)
    for (std::byte value : all.train->get(i).input.bytes) sum += static_cast<double>(value) / 255;
  EXPECT_NEAR(all.mean[0], sum / 480 / 28 / 28, 1e-6);
  EXPECT_EQ(all.pixels,
            fmt::format("mean {:.4f}, deviation {:.4f} of pixels / 255, measured on all 480 training images",
                        all.mean[0], all.deviation[0]));
  EXPECT_NE(some.pixels.find("measured on all 100 training images"), std::string::npos) << some.pixels;
  EXPECT_NE(some.mean[0], all.mean[0]);
  EXPECT_EQ(opened({data, "mean=[0.5]", "deviation=[0.25]"}).pixels,
            "mean 0.5000, deviation 0.2500 of pixels / 255, as given");
}

TEST(OpenData, ALabelBeyondTheClassesAndAClassWithoutASampleAreRefused) {
  ScratchFolder folder;
  put_digits(folder / "digits");
  const fs::path labels = folder / "digits/train-labels-idx1-ubyte";
  const std::string data = "data=" + (folder / "digits").string(), whole = folder.get("digits/train-labels-idx1-ubyte");
  std::string wrong = whole;
  wrong[8 + 17] = static_cast<char>(200);
  std::ofstream(labels, std::ios::binary) << wrong;
  EXPECT_ERROR(opened({data}), DataError, "training sample 17 has the label 200, expected less than 10");
  EXPECT_EQ(opened({data, "num_classes=201"}).classes, 201);
  std::string without = whole;
  std::replace(without.begin() + 8, without.end(), '\7', '\6');
  std::ofstream(labels, std::ios::binary) << without;
  EXPECT_ERROR(opened({data}), DataError, "1 of 10 classes has no sample to train on: 7; add some, or say how many");
  EXPECT_EQ(opened({data, "num_classes=10"}).classes, 10);
}

TEST(OpenData, SettingsThatDoNotFitAreErrors) {
  ScratchFolder folder;
  put_pictures(folder / "train", 2);
  EXPECT_ERROR(opened({"train_file=" + folder.path().string()}), ConfigError, "train_file and test_file must both");
  EXPECT_ERROR(opened({"mean=[0.5, 0.5]"}), ConfigError, "mean has 2 values, expected one for each of the 1 channels");
  EXPECT_ERROR(opened({"crop=resized", "crop_area=[0.5, 0.1]"}), ConfigError,
               "crop_area is [0.5, 0.1], expected two numbers, the smaller first");
  EXPECT_ERROR(opened({"crop=resized", "crop_ratio=1"}), ConfigError, "crop_ratio is [1]");
  EXPECT_ERROR(opened({"crop=random"}), ConfigError, "expected one of auto, none, resized, padded");
  EXPECT_ERROR(opened({"flip=2"}), ConfigError, "flip is 2, expected from 0 to 1");
  EXPECT_ERROR(opened({"center_crop=0"}), ConfigError, "center_crop is 0, expected above 0, at most 1");
  EXPECT_ERROR(opened({"model=bert_mini", "mixup=0.2"}), ConfigError, "mixup is for images, and bert_mini reads text");
  fs::create_directories(folder / "none");
  EXPECT_ERROR(opened({"train_file=" + (folder / "none").string(), "test_file=" + (folder / "none").string()}),
               DataError, "there is no folder of pictures");
}

TEST(TrainerPictures, AModelLearnsFromFoldersAndACorruptFileIsNamed) {
  ScratchFolder folder;
  put_pictures(folder / "train", 12);
  put_pictures(folder / "val", 4);
  auto train = [&](std::vector<std::string> more) {
    more.insert(more.begin(),
                {"data=" + folder.path().string(), "output=" + (folder / "runs").string(), "place=cpu", "image_size=28",
                 "model=lenet", "batch_size=8", "epochs=4", "optimizer=adam", "lr=0.003"});
    return Trainer(default_config(more)).run();
  };
  EXPECT_EQ(train({}).best_score, 1);

  // Names of folders may be of any bytes, and what is written about them is UTF-8.
  for (const char* part : {"train", "val"}) fs::rename(folder / part / "dark", folder / part / "d\xe4rk");
  EXPECT_EQ(train({}).best_score, 1);
  EXPECT_EQ(nn::SafetensorsFile::open(folder / "runs/2/best.safetensors").metadata().at("class_names"),
            R"(["d\\xE4rk","light"])");
  for (const char* part : {"train", "val"}) fs::rename(folder / part / "d\xe4rk", folder / part / "dark");

  // Pictures of other formats are told of, once.
  std::ofstream(folder / "train/dark/0.webp") << "RIFF";
  class Notes final : public Reporter {
   public:
    explicit Notes(std::string& text) : text_(text) {}
    void begin(const RunBegins&) override {}
    void step(const StepReport&) override {}
    void evaluated(const EvaluationReport&) override {}
    void note(const std::string& text) override { text_ += text + "\n"; }
    void end(const RunEnds&) override {}

   private:
    std::string& text_;
  };
  std::string notes;
  Trainer trainer(
      default_config(std::vector<std::string>{"data=" + folder.path().string(), "output=" + (folder / "runs").string(),
                                              "place=cpu", "image_size=28", "model=lenet", "batch_size=8", "steps=1"}));
  trainer.add(std::make_unique<Notes>(notes));
  trainer.run();
  EXPECT_EQ(notes,
            folder.path().string() + ": passed over 1 picture that is neither JPEG nor PNG: 1 .webp (dark/0.webp)\n");

  std::string damaged = (folder / "train/light/10.jpg").string();
  fs::resize_file(damaged, 400);
  EXPECT_ERROR(train({"num_workers=2"}), DataError, damaged);
}

}  // namespace
}  // namespace bonfire::train::open_data_test
