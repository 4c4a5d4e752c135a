#pragma once
// What the labels of a data set say about it: a wrong one would only show as a strange loss, or as a model with more
// classes than there are.

#include "bonfire/data/source.h"

namespace bonfire::data {

std::vector<int64_t> count_labels(const Dataset& dataset, int64_t classes);  // [classes]; labels must be below it

// In words, each with the sample or the class: labels beyond the classes that such a set has, and classes without a
// sample to train on. `classes`: how many there are, by whoever knows; then those without a sample are meant to be.
std::vector<std::string> label_faults(const ImageSource& source, std::optional<int64_t> classes = {});

}  // namespace bonfire::data
