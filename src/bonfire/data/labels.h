#pragma once
// What the labels of a data set say about it: a wrong one would only show as a strange loss, or as a model with more
// classes than there are.

#include <string_view>

#include "bonfire/data/source.h"

namespace bonfire::data {

// A label as an index below `classes`. DataError naming the sample and its label where it is none; `where`: who asks.
size_t class_index(std::string_view where, int64_t sample, int64_t label, int64_t classes);

// [classes]: the samples of each. DataError where a label is none of them.
std::vector<int64_t> count_labels(const Dataset& dataset, int64_t classes);

// In words, each with the sample or the class: labels beyond the classes that such a set has, and classes without a
// sample to train on. `classes`: how many there are, by whoever knows; then those without a sample are meant to be.
std::vector<std::string> label_faults(const ImageSource& source, std::optional<int64_t> classes = {});

}  // namespace bonfire::data
