#pragma once
// The data that a configuration names.

#include <memory>

#include "bonfire/data/dataset.h"
#include "bonfire/data/wordpiece.h"
#include "bonfire/train/config.h"
#include "bonfire/train/data_content.h"

namespace bonfire::train {

struct OpenedData {
  std::shared_ptr<const data::Dataset> train, test;  // `test` gives images as the model sees them
  std::shared_ptr<const data::Dataset> validation;   // so does this; null: nothing is held back
  std::string title;                                 // "generated glyphs", or the folder
  int64_t classes = 0;
  Shape image;                                      // [H, W, C] that the model sees; of a text: empty
  std::vector<float> mean, deviation;               // [C], of pixels / 255
  std::string pixels;                               // the same in words, and on what it was measured; of a text: empty
  int64_t vocabulary = 0;                           // pieces; 0: images
  data::Transform train_transform, test_transform;  // may be empty
  bool is_text() const { return vocabulary > 0; }
  std::vector<std::string> class_names;
  DataContent train_content, test_content;  // as stored
  std::string passed_over;                  // of the folder, in words: what cannot be read; empty: nothing
};

// DataError naming what was looked for; ConfigError when num_classes is too small for the labels, when settings of
// images do not fit, or the model reads text and these are images, or the other way round.
OpenedData open_data(const Config& config);

bool reads_text(const Config& config);                  // whether its model does
data::WordPiece open_vocabulary(const Config& config);  // of its text

}  // namespace bonfire::train
