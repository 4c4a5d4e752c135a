#pragma once
// Gathering: what the ranks of a job have of a variable, put together. Reading a variable never does that by itself,
// since ranks would wait for each other wherever one of them looks at a number.
//
//   Tensor weight = fleet::gather(model.fc.weight);  // on all ranks, which each have some rows of it

#include <span>
#include <string>
#include <vector>

#include "bonfire/comm/group.h"
#include "bonfire/graph/variable.h"

namespace bonfire::fleet {

// A collective call of all ranks of the job: the variable's whole value, in host memory. Each rank gives its slice, and
// several may have the same. DataError, on all ranks, where elements are nowhere, or here and there differ: it names
// the variable, the slices and the ranks.
Tensor gather(const Variable& variable);

// The same between the ranks of a group, of values in host memory: `slice` of a tensor, row-major. Returns all of it.
std::vector<std::byte> gather(comm::Group& group, const std::string& name, DType dtype, const Slice& slice,
                              std::span<const std::byte> values);

}  // namespace bonfire::fleet
