#pragma once
// What the contract of comm::Group (comm/group.h) promises, as checks that each rank of a group runs. A rank for which
// a promise does not hold throws.

#include "tests/comm/ranks.h"

namespace bonfire::testing {

enum class Memory { own, buffer };  // of the rank alone, or made by Group::buffer()

// Every collective x dtype x reduction x size gives exactly the values of the definition.
void check_collectives(Rank& rank, Memory memory, bool large);
// Sums that depend on the order of summation are the same bits on all ranks, and again on a second run.
void check_equal_bits(Rank& rank);
// Messages of many sizes between neighbours arrive whole and in order.
void check_messages(Rank& rank);
// So they do to and from all ranks at once, each way on a thread of its own, while the group reduces.
void check_messages_beside(Rank& rank);
// Groups of the odd and of the even ranks, and groups of those.
void check_split(Rank& rank);
// Arguments that cannot be right are refused, and the group goes on.
void check_refusals(Rank& rank);

}  // namespace bonfire::testing
