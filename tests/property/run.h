#pragma once
// Runs a random program with Bonfire.

#include "tests/property/program.h"

namespace bonfire::property {

enum class How {
  traced,    // as an imperative loop: commits where the program reads, updates or goes on to another backward pass
  compiled,  // its blocks by compile()
  op_by_op   // every op is committed as soon as it is traced
};

Answer run(const Program& program, How how);

}  // namespace bonfire::property
