#pragma once
// CIFAR-10 and CIFAR-100 in their binary form: records of one label (CIFAR-100: a coarse and a fine one), then 32×32
// pixels of red, green and blue.
//
//   std::shared_ptr<data::StoredImages> train = data::load_cifar("data/cifar-10-batches-bin", data::Split::train);

#include <filesystem>

#include "bonfire/data/idx.h"
#include "bonfire/data/stored_images.h"

namespace bonfire::data {

bool is_cifar(const std::filesystem::path& folder);  // whether the files of either are there

// CIFAR-10: data_batch_1.bin … data_batch_5.bin and test_batch.bin; CIFAR-100 (the fine labels): train.bin and
// test.bin. Class names come from batches.meta.txt or fine_label_names.txt where there is one. DataError with the
// file's name when one is missing, is no whole number of records, or has a label that its classes do not.
std::shared_ptr<StoredImages> load_cifar(const std::filesystem::path& folder, Split split);

// The files of a split, and how many classes they have: 10 or 100.
std::vector<std::filesystem::path> cifar_files(const std::filesystem::path& folder, Split split);
int cifar_classes(const std::filesystem::path& folder);

// Adds the records of one file's bytes: images [N, 32, 32, 3] and labels [N].
void parse_cifar(std::span<const std::byte> file, const std::string& name, int classes, std::vector<uint8_t>& images,
                 std::vector<uint8_t>& labels);

}  // namespace bonfire::data
