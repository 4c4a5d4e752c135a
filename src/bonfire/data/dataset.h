#pragma once
// A data set: numbered samples, each an input and its label. `get` is a pure function of the index and is called by
// several threads at once; what is random (augmentation, masking) is a transform, with random numbers that are a pure
// function of (seed, epoch, index). So a sample is the same whichever worker makes it, and after a resume.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bonfire/tensor/dtype.h"
#include "bonfire/tensor/shape.h"

namespace bonfire::data {

struct Array {
  DType dtype = DType::u8;
  Shape shape;
  std::vector<std::byte> bytes;  // row-major
};

struct Sample {
  Array input;         // an image: u8 [H, W, C]; one that is still a JPEG or PNG file: u8 [bytes]
  Array label;         // a class: i64 []; several in shares: f32 [classes]
  std::string source;  // where it came from, for errors: a file's name; may be empty
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  // DataError naming the file when it cannot be read, and where there is no such sample.
  virtual Sample get(int64_t index) const = 0;
  virtual int64_t label(int64_t index) const;  // of a class label, without its image where that can be
  virtual std::vector<std::string> class_names() const { return {}; }  // UTF-8

 protected:
  void require_index(int64_t index) const;  // DataError naming it and the size where there is no such sample
};

// Which sample a transform is working on, and where its random numbers come from.
class SampleKey {
 public:
  SampleKey(uint64_t seed, int64_t epoch, int64_t index) : seed_(seed), epoch_(epoch), index_(index) {}
  int64_t epoch() const { return epoch_; }
  int64_t index() const { return index_; }
  SampleKey in_epoch(int64_t epoch) const { return {seed_, epoch, index_}; }
  SampleKey of(int64_t index) const { return {seed_, epoch_, index}; }  // another sample, in the same epoch
  float uniform(uint64_t number) const;  // in [0, 1): draw `number` of this sample in this epoch

 private:
  uint64_t seed_;
  int64_t epoch_, index_;
};

using Transform = std::function<void(Sample&, const SampleKey&)>;

Sample image_sample(std::vector<std::byte> pixels, const Shape& shape, int64_t label);
Sample encoded_image_sample(std::vector<std::byte> file, int64_t label, std::string source);
int64_t label_of(const Sample& sample);  // of a class label; DataError where it is another kind of label

}  // namespace bonfire::data
