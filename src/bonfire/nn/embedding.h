#pragma once
// A table of vectors, looked up by index.

#include "bonfire/nn/init.h"
#include "bonfire/nn/module.h"

namespace bonfire::nn {

class Embedding : public Callable<Embedding> {
 public:
  struct Options {
    int64_t rows, size;           // entries of the table, elements of each
    int64_t padding_index = -1;   // this row is zeros at first and gets no gradient; -1: none
    init::Rule weight_init = {};  // empty: as PyTorch, standard normal
  };
  explicit Embedding(const Options& options);

  Tensor forward(const Tensor& ids) const;  // i32 or i64 [...] → [..., size]

  Parameter weight;  // [rows, size]

 private:
  int64_t padding_index_;
};

}  // namespace bonfire::nn
