#include "bonfire/train/tasks/predictor.h"

#include <gtest/gtest.h>

#include "bonfire/base/error.h"
#include "bonfire/train/report/png.h"
#include "bonfire/train/trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/digits.h"

namespace bonfire::train::predictor_test {
namespace {

using bonfire::testing::ScratchFolder;

// A run on glyphs, and its first test images in files of both kinds.
class PredictorTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder = std::make_unique<ScratchFolder>();
    Trainer trainer(default_config(
        std::vector<std::string>{data_of_digits(*folder), "output=" + (*folder / "runs").string(), "place=cpu",
                                 "batch_size=32", "epochs=1", "model=lenet", "optimizer=adam", "lr=0.002"}));
    class Keep final : public Reporter {
     public:
      void begin(const RunBegins&) override {}
      void step(const StepReport&) override {}
      void evaluated(const EvaluationReport& report) override { predictions = report.predictions; }
      void note(const std::string&) override {}
      void end(const RunEnds&) override {}
    };
    trainer.add(std::make_unique<Keep>());
    trainer.run();
    std::string idx = std::string("\0\0\x08\x03\0\0\0\x02\0\0\0\x1c\0\0\0\x1c", 16);
    for (int i = 0; i < 2; ++i) idx.append(reinterpret_cast<const char*>(predictions[i].image.bytes.data()), 28 * 28);
    folder->put("two-idx3-ubyte", idx);
    folder->put("first.png", encode_png(predictions[0].image.bytes, predictions[0].image.shape));
  }
  static void TearDownTestSuite() { folder.reset(); }

  static std::unique_ptr<ScratchFolder> folder;
  static std::vector<Prediction> predictions;
};
std::unique_ptr<ScratchFolder> PredictorTest::folder;
std::vector<Prediction> PredictorTest::predictions;

TEST_F(PredictorTest, AgreesWithTheEvaluationOfTheRun) {
  Predictor predictor(*folder / "runs/1");
  for (const char* file : {"two-idx3-ubyte", "first.png"}) {
    std::vector<data::Array> images = predictor.open(*folder / file);
    auto guesses = predictor.guesses(images, 3);
    ASSERT_EQ(guesses.size(), file[0] == 't' ? 2U : 1U);
    for (size_t i = 0; i < guesses.size(); ++i) {
      ASSERT_EQ(guesses[i].size(), 3U);
      EXPECT_EQ(guesses[i][0].label, predictions[i].predicted) << file;
      EXPECT_NEAR(guesses[i][0].probability, predictions[i].probability, 1e-5) << file;
      EXPECT_GE(guesses[i][1].probability, guesses[i][2].probability);
    }
  }
  EXPECT_EQ(predictor.class_names().size(), 10U);
}

TEST_F(PredictorTest, PicturesOfAnotherSizeAreBroughtToTheModels) {
  folder->put("large.png", encode_png(std::vector<std::byte>(60 * 40 * 3), {60, 40, 3}));
  Predictor predictor(*folder / "runs/1");
  std::vector<data::Array> images = predictor.open(*folder / "large.png");
  ASSERT_EQ(images.size(), 1U);
  EXPECT_EQ(images[0].shape, (Shape{28, 28, 1}));
}

TEST_F(PredictorTest, WhatIsNoImageIsAnErrorWithItsName) {
  Predictor predictor(*folder / "runs/1");
  folder->put("labels", std::string("\0\0\x08\x01\0\0\0\x01\x05", 9));
  folder->put("cut.png", folder->get("first.png").substr(0, 60));
  folder->put("words.txt", "what is this");
  EXPECT_ERROR(predictor.open(*folder / "labels"), DataError, "expected images of rank 3");
  EXPECT_ERROR(predictor.open(*folder / "cut.png"), DataError, "cut.png");
  EXPECT_ERROR(predictor.open(*folder / "words.txt"), DataError, "words.txt");
  EXPECT_ERROR(predictor.open(*folder / "absent.png"), DataError, "absent.png");
  EXPECT_ERROR(Predictor(*folder / "absent"), ConfigError, "absent");
}

}  // namespace
}  // namespace bonfire::train::predictor_test
