#pragma once
// Labelled sequences that are built in, with a rule: among letters of no meaning stands one mark, `>`, and the letter
// after it is the class. The five letters that are classes stand elsewhere too, so that which letters a sequence has
// says nothing: only their order does. Sequence i is a pure function of (seed, i); the splits are drawn apart.

#include <span>

#include "bonfire/data/dataset.h"
#include "bonfire/data/idx.h"

namespace bonfire::data {

struct SequencesOptions {
  Split split = Split::train;
  int64_t size = 8000;  // sequences
  int64_t length = 16;  // symbols of each, 2 at least
  uint64_t seed = 1;
};

class Sequences final : public Dataset {
 public:
  explicit Sequences(const SequencesOptions& options = {});  // ConfigError for a size or a length that cannot be
  int64_t size() const override { return options_.size; }
  Sample get(int64_t index) const override;  // i64 [length] and the class
  int64_t label(int64_t index) const override;
  std::vector<std::string> class_names() const override;

  static std::span<const std::string> symbols();  // token i is the i-th; the first five are the classes

 private:
  std::vector<int64_t> tokens(int64_t index) const;
  SequencesOptions options_;
};

}  // namespace bonfire::data
