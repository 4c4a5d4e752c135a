#pragma once
// Gives every output and every assignment a value of its own to stand for, by inserting copies where two would share
// one, or where it is an input of the graph. After that, memory planning can write each straight to its place.

#include "bonfire/graph/graph.h"

namespace bonfire::runtime {

const Op& copy_op();  // the same value in memory of its own

void separate_outputs(Graph& graph);

}  // namespace bonfire::runtime
