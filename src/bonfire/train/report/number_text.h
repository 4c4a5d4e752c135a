#pragma once
// Numbers as people read them: the same in the terminal, in the report and in notes.

#include <cstdint>
#include <string>
#include <string_view>

namespace bonfire::train {

std::string grouped(int64_t number);                      // 20000 → "20,000"
std::string grouped(double number, int digits);           // (20000.25, 1) → "20,000.2"
std::string duration(double seconds);                     // 75 → "1:15", 3675 → "1:01:15"
std::string percent(double share);                        // 0.9912 → "99.12 %"
std::string whole_percent(double share);                  // 0.9912 → "99 %"
std::string byte_text(double bytes);                      // 246824 → "246.8 kB"
std::string plural(int64_t count, std::string_view one);  // (1, "step") → "1 step", (2000, "step") → "2,000 steps"

}  // namespace bonfire::train
