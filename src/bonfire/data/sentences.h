#pragma once
// The text that is built in: short English sentences, each a pure function of (seed, number), with rules that a model
// can find out: sums, the order of days, opposites, colours of animals, verbs that agree with their subject.

#include <string>
#include <vector>

#include "bonfire/data/idx.h"

namespace bonfire::data {

// Sentences of the two splits are drawn apart; there are few enough of them that the test split repeats some.
std::vector<std::string> sentences(Split split, int64_t count, uint64_t seed = 1);

std::vector<std::string> sentence_vocabulary();  // a WordPiece vocabulary that covers them

}  // namespace bonfire::data
