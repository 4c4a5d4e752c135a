#pragma once
// Runs a random program in f64, one element at a time, with nothing of Bonfire's.

#include <cstdint>

#include "tests/property/program.h"

namespace bonfire::property {

// With `noise`, every result is off by up to so much (relative): how far the answers then are from the exact ones tells
// how far those of a computation with such rounding may be.
Answer run_reference(const Program& program, double noise = 0, uint64_t noise_seed = 0);

}  // namespace bonfire::property
