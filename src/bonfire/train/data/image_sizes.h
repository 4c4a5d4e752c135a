#pragma once
// Which sizes of images a model can take, found by tracing it.

#include "bonfire/models/make.h"

namespace bonfire::train {

// image: [H, W, C]. ConfigError that says which sizes the model takes when this is none of them.
void require_size(const models::Model& model, const std::string& name, const Shape& image);

}  // namespace bonfire::train
