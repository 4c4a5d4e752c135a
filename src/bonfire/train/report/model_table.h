#pragma once
// What each part of a model costs, found by tracing it once on one sample without running it.

#include <string>
#include <vector>

#include "bonfire/models/make.h"

namespace bonfire::train {

struct ModelRow {
  std::string path = {};   // "layer1.0.conv1"; "" for what the model itself does
  std::string ops = {};    // "conv2d", "batch_norm, relu"
  Shape output = {};       // of one sample
  int64_t parameters = 0;  // elements
  double operations = 0;   // floating-point, of products and convolutions, in the forward pass
  double bytes = 0;        // of results, which training keeps until the backward pass
};

// In the order in which parts first run. `input` is one sample: [1, ...].
std::vector<ModelRow> model_table(const models::Model& model, const Tensor& input);

std::string to_string(const std::vector<ModelRow>& rows);  // a table for people, sums last

}  // namespace bonfire::train
