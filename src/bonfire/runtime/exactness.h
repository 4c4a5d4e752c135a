#pragma once
// How exact the candidates of a node are: each is run on the same numbers, and compared with the node in f64.
//
//   for (const CandidateError& one : candidate_errors(node, inputs))
//     fmt::print("{} {:.1e}, {:.1f} times the plain kernel's\n", one.candidate, one.error, one.multiple);

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "bonfire/kernel/kernel.h"

namespace bonfire::runtime {

// Of the output that it computes worst, compared with the plain kernel: the first candidate that states an error of 1.
struct CandidateError {
  std::string candidate;
  double stated;     // Candidate::error
  bool keeps_zeros;  // stated too
  double error;      // root mean square of the differences, over that of the results
  double multiple;   // of the plain kernel's error
  double not_zeros;  // share of the results that are zero in f64 and are something else here
};

// `inputs`: each operand, row-major, in host memory. All candidates, those beyond kMostError too.
std::vector<CandidateError> candidate_errors(const GraphNode& node, std::span<const std::vector<std::byte>> inputs);

}  // namespace bonfire::runtime
