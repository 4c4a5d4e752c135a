#pragma once
// The data that a configuration names, and the task that goes with it.

#include <memory>

#include "bonfire/data/dataset.h"
#include "bonfire/data/wordpiece.h"
#include "bonfire/train/config/config.h"
#include "bonfire/train/data/data_content.h"
#include "bonfire/train/tasks/task.h"

namespace bonfire::train {

struct OpenedData {
  std::shared_ptr<const data::Dataset> train,
      test;  // `test` gives samples as the model sees them; of a program: or null
  std::shared_ptr<const data::Dataset> validation;  // so does this; null: nothing is held back
  std::shared_ptr<const Task> task;
  models::ModelOptions model;                       // what the data asks of one
  std::string title;                                // "generated glyphs", or the folder
  int64_t classes = 0;                              // of text: pieces
  std::vector<std::string> class_names;             // empty: samples have no class
  double sample_bytes = 0;                          // of one in a batch, as it is read and as the model sees it
  data::Transform train_transform, test_transform;  // may be empty
  DataContent train_content, test_content;          // as stored
  std::string passed_over;                          // of the folder, in words: what cannot be read; empty: nothing
  // Of images.
  Shape image;                         // [H, W, C] that the model sees
  std::vector<float> mean, deviation;  // [C], of pixels / 255
  std::string pixels;                  // the same in words, and on what it was measured
};

// By the task of the model: known_tasks.h. DataError naming what was looked for; ConfigError when num_classes is too
// small for the labels, for settings of other data, or where the model does not read what the data holds.
OpenedData open_data(const Config& config);

// --- for the files of tasks ------------------------------------------------------------------------------------------

void refuse_image_settings(const Config& config);  // ConfigErrors of models that read something else
void refuse_text_settings(const Config& config);
// Of a task whose data is built in and nowhere else. `built_in`: what that is.
void require_generated(const Config& config, const std::string& built_in);

void note_content(OpenedData& data);
void hold_back(const Config& config, OpenedData& data);  // validation_share, before anything is measured
// As measured, but for what is given. Every image counts up to so many, then some that are spread evenly.
void set_pixels(const Config& config, const data::Dataset& images, int64_t most, OpenedData& data);
void open_images(const Config& config, OpenedData& data);  // but for the task

data::WordPiece open_vocabulary(const Config& config);  // of its text

}  // namespace bonfire::train
