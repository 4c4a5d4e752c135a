#pragma once
// A program that a launcher has started as several ranks, and that never joins them, trains as many copies of its
// model, each for itself. The first update says so, once for the whole job: rank 0 does, on stderr.

namespace bonfire::comm {

void note_joined();  // this process is, or has chosen to be, a rank of its own

// To be called by every update; costs nothing after the first.
void tell_unless_joined();

}  // namespace bonfire::comm
