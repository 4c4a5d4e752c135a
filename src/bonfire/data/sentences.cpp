#include "bonfire/data/sentences.h"

#include <fmt/core.h>

#include <array>
#include <iterator>

#include "bonfire/base/error.h"
#include "bonfire/base/random.h"

namespace bonfire::data {

namespace {

constexpr const char* kNumbers[] = {"zero",     "one",     "two",     "three",     "four",    "five",   "six",
                                    "seven",    "eight",   "nine",    "ten",       "eleven",  "twelve", "thirteen",
                                    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"};
constexpr const char* kDays[] = {"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"};
constexpr std::array<const char*, 2> kOpposites[] = {
    {"hot", "cold"},  {"day", "night"}, {"big", "small"},  {"old", "new"},    {"wet", "dry"},    {"open", "closed"},
    {"fast", "slow"}, {"high", "low"},  {"full", "empty"}, {"left", "right"}, {"light", "dark"}, {"rich", "poor"}};
// An animal, its colour, what it eats, how it moves.
constexpr std::array<const char*, 4> kAnimals[] = {
    {"crow", "black", "seed", "hop"},  {"swan", "white", "weed", "swim"},      {"frog", "green", "gnat", "jump"},
    {"robin", "red", "worm", "run"},   {"bear", "brown", "berry", "walk"},     {"lion", "yellow", "goat", "roar"},
    {"seal", "grey", "fish", "dive"},  {"flamingo", "pink", "shell", "stand"}, {"snake", "olive", "mouse", "crawl"},
    {"camel", "tan", "thorn", "trot"},
};
constexpr const char* kPlaces[] = {"river", "forest", "garden", "field", "hill", "lake", "barn", "road"};
constexpr const char* kOthers[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]",   ".",  ",",     "?",     "##s",
                                   "the",   "a",     "is",    "plus",  "and",      "of", "comes", "after", "before",
                                   "eat",   "near",  "by",    "every", "opposite", "it", "what"};

// The numbers of one sentence, drawn one after another.
class SentenceDraws {
 public:
  SentenceDraws(uint64_t seed, uint64_t stream, uint64_t sentence)
      : seed_(seed), stream_(stream), sentence_(sentence) {}
  size_t below(size_t limit) {
    constexpr uint64_t kDraws = 16;  // a sentence's share of the counter
    return philox(seed_, stream_, sentence_ * kDraws + next_++).word[0] % limit;
  }
  template <class T, size_t count>
  const T& of(const T (&list)[count]) {
    return list[below(count)];
  }

 private:
  uint64_t seed_, stream_, sentence_, next_ = 0;
};

std::string sentence(SentenceDraws draws) {
  switch (draws.below(6)) {
    case 0: {
      size_t a = draws.below(10), b = draws.below(10);
      return fmt::format("{} plus {} is {}.", kNumbers[a], kNumbers[b], kNumbers[a + b]);
    }
    case 1: {
      size_t day = draws.below(std::size(kDays));
      const char *today = kDays[day], *next = kDays[(day + 1) % std::size(kDays)];
      return draws.below(2) == 0 ? fmt::format("{} comes after {}.", next, today)
                                 : fmt::format("{} comes before {}.", today, next);
    }
    case 2: {
      const auto& pair = draws.of(kOpposites);
      size_t first = draws.below(2);
      return fmt::format("The opposite of {} is {}.", pair[first], pair[1 - first]);
    }
    case 3: {
      const auto& animal = draws.of(kAnimals);
      return fmt::format("The {} is {}, and it {}s.", animal[0], animal[1], animal[3]);
    }
    case 4: {
      const auto& animal = draws.of(kAnimals);
      return fmt::format("{} {}s {} by the {}.", kNumbers[2 + draws.below(8)], animal[0], animal[3], draws.of(kPlaces));
    }
    default: {
      const auto& animal = draws.of(kAnimals);
      return draws.below(2) == 0
                 ? fmt::format("What eats a {}? The {}.", animal[2], animal[0])
                 : fmt::format("Every {} eats a {} near the {}.", animal[0], animal[2], draws.of(kPlaces));
    }
  }
}

}  // namespace

std::vector<std::string> sentences(Split split, int64_t count, uint64_t seed) {
  BONFIRE_CHECK(count >= 0);
  std::vector<std::string> lines;
  lines.reserve(static_cast<size_t>(count));
  for (uint64_t i = 0; i < static_cast<uint64_t>(count); ++i)
    lines.push_back(sentence({seed, split == Split::train ? 0U : 1U, i}));
  return lines;
}

std::vector<std::string> sentence_vocabulary() {
  std::vector<std::string> pieces(std::begin(kOthers), std::end(kOthers));
  pieces.insert(pieces.end(), std::begin(kNumbers), std::end(kNumbers));
  pieces.insert(pieces.end(), std::begin(kDays), std::end(kDays));
  pieces.insert(pieces.end(), std::begin(kPlaces), std::end(kPlaces));
  for (const auto& pair : kOpposites) pieces.insert(pieces.end(), pair.begin(), pair.end());
  for (const auto& animal : kAnimals) pieces.insert(pieces.end(), animal.begin(), animal.end());
  return pieces;
}

}  // namespace bonfire::data
