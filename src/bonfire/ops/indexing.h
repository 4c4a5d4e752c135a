#pragma once
// Ops that pick elements by index. An index is i32 or i64; one out of range is a DataError when the op runs, naming the
// op and the index.

#include "bonfire/graph/tensor.h"

namespace bonfire {

// result[i][j][k] = x[index[i][j][k]][j][k] for axis 0, and so on: torch.gather.
Tensor gather(const Tensor& x, int64_t axis, const Tensor& index);

// The gradient of gather: zeros of `shape`, to which x[i][j][k] is added at [index[i][j][k]][j][k]. Several at one
// place are added in the order of the index.
Tensor scatter_add(const Tensor& x, int64_t axis, const Tensor& index, const Shape& shape);

Tensor index_select(const Tensor& x, int64_t axis, const Tensor& index);  // index has rank 1

// weight [V, D], ids of any shape → ids' shape + [D].
struct EmbeddingOptions {
  int64_t padding_index = -1;  // this row gets no gradient; -1: none
};
Tensor embedding(const Tensor& weight, const Tensor& ids, EmbeddingOptions options = {});

Tensor one_hot(const Tensor& ids, int64_t classes, DType dtype = DType::i64);  // ids' shape + [classes]

}  // namespace bonfire
