#pragma once
// Split: which axis of some of a model's variables the ranks along the tensor axis of a mesh share out. A model brings
// a list of them (Module::splits), which knows nothing of ranks; parallel/tensor_split.h applies it, or the user's own.

#include <cstdint>
#include <string>

namespace bonfire::nn {

struct Split {
  std::string path;    // of variables, as in state_dict(); `*` stands for any text
  int axis = 0;        // of the whole variable
  int64_t blocks = 1;  // matrices that are packed along it, each of which is shared out: query, key and value are 3
};

}  // namespace bonfire::nn
