#pragma once
// What is done to images before they are stacked into a batch, with torchvision's words and defaults. Each is a pure
// function of (seed, epoch, index of the sample), so a batch has the same bits whichever worker makes it and after a
// resume.
//
//   LoaderOptions options{.transform = data::in_turn({data::random_resized_crop({.size = 224, .flip = 0.5}),
//                                                     data::random_erasing({.probability = 0.25})})};
//
// They take images, u8 [H, W, C], and files that are not decoded yet, u8 [bytes]: of those only the part that is needed
// is decoded, scaled down on the way where that is enough. Images stay u8; Normalize is the op normalize_image, on the
// device.

#include "bonfire/data/dataset.h"
#include "bonfire/data/image_reader.h"

namespace bonfire::data {

struct RandomResizedCropOptions {
  int64_t size = 224;                                  // height and width of the result
  double least_area = 0.08, most_area = 1;             // of the part, as a share of the image
  double least_ratio = 3.0 / 4, most_ratio = 4.0 / 3;  // of the part's width to its height
  double flip = 0;                                     // how often it is mirrored too
};
Transform random_resized_crop(const RandomResizedCropOptions& options = {});  // a random part, brought to one size

struct CenterCropOptions {
  int64_t size = 224;    // height and width of the result
  double share = 0.875;  // of the short side: Resize(size / share), then CenterCrop(size)
};
Transform center_crop(const CenterCropOptions& options = {});  // what evaluation sees

struct ResizeOptions {
  ImageSize size;   // of the result, whatever shape the image had
  double flip = 0;  // how often it is mirrored too
};
Transform resize(const ResizeOptions& options);

struct RandomCropOptions {
  int64_t padding = 4;             // pixels around the image, of which a part of the image's own size is cut
  double flip = 0;                 // how often it is mirrored too
  std::vector<uint8_t> fill = {};  // [C], the colour of the padding; empty: black
};
Transform random_crop(const RandomCropOptions& options = {});

struct RandomErasingOptions {
  double probability = 0.5;
  double least_area = 0.02, most_area = 0.33;  // of the rectangle, as a share of the image
  double least_ratio = 0.3, most_ratio = 3.3;  // of its height to its width
  std::vector<uint8_t> fill = {};              // [C], its colour; empty: black
};
Transform random_erasing(const RandomErasingOptions& options = {});

struct MixupOptions {
  double alpha = 0.2;   // shares are drawn from Beta(alpha, alpha)
  int64_t classes = 0;  // labels become shares, f32 [classes]
  int64_t samples = 0;  // partners are among the first so many; 0: all
};
// Does `transform`, then mixes the image with another of the data set, which has gone through `transform` too: images
// cost twice as much to prepare.
Transform mixup(std::shared_ptr<const Dataset> dataset, Transform transform, const MixupOptions& options);

Transform in_turn(std::vector<Transform> transforms);  // one after another; empty ones are left out

void decode(Sample& sample);  // a file that is not decoded yet becomes u8 [H, W, 3]; other samples stay as they are

// A data set whose samples have gone through a transform, as in epoch 0 of seed 0: for transforms without chance.
class TransformedDataset final : public Dataset {
 public:
  TransformedDataset(std::shared_ptr<const Dataset> dataset, Transform transform)
      : dataset_(std::move(dataset)), transform_(std::move(transform)) {}
  int64_t size() const override { return dataset_->size(); }
  Sample get(int64_t index) const override;
  int64_t label(int64_t index) const override { return dataset_->label(index); }
  std::vector<std::string> class_names() const override { return dataset_->class_names(); }

 private:
  std::shared_ptr<const Dataset> dataset_;
  Transform transform_;
};

}  // namespace bonfire::data
