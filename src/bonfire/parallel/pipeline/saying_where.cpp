#include "bonfire/parallel/pipeline/saying_where.h"

#include <new>
#include <regex>

#include "bonfire/base/error.h"
#include "bonfire/parallel/fleet.h"

namespace bonfire::pipeline {
namespace {

constexpr const char* kAlongAxis = " along the pipeline)";

// Numbers of neighbours along an axis are as far apart anywhere in the mesh.
int place_of(int rank) {
  const std::vector<int> ranks = fleet::mesh().ranks_along(Axis::pipeline);
  return ranks.size() < 2 ? 0 : rank / (ranks[1] - ranks[0]) % static_cast<int>(ranks.size());
}

// Groups name ranks like this: "rank 3 (host, process 4711)". Of several the last is the one that was lost first: those
// before it say whom they have lost.
std::string with_place_of_rank(const std::string& text) {
  static const std::regex name("rank ([0-9]+) \\(");
  int rank = -1;
  for (std::sregex_iterator one(text.begin(), text.end(), name), end; one != end; ++one) rank = std::stoi((*one)[1]);
  if (rank < 0 || rank >= fleet::mesh().world() || text.find(kAlongAxis) != std::string::npos) return text;
  return fmt::format("{} (rank {} is {} of {}{}", text, rank, place_of(rank), fleet::mesh().size(Axis::pipeline),
                     kAlongAxis);
}

template <class Kind>
[[noreturn]] void say_where(const std::function<std::string()>& place, const Kind& error) {
  const std::string text = error.what();
  const bool has_place = text.find("[pipeline]") != std::string::npos;
  throw Kind(with_place_of_rank(has_place ? text : fmt::format("{}: {}", place(), text)));
}

}  // namespace

void saying_where(const std::function<std::string()>& place, const std::function<void()>& body) {
  try {
    body();
  } catch (const TimeoutError& error) {
    say_where(place, error);
  } catch (const CommError& error) {
    say_where(place, error);
  } catch (const DeviceError& error) {
    say_where(place, error);
  } catch (const std::bad_alloc&) {
    say_where(place, DeviceError("out of memory on the host"));
  }
}

}  // namespace bonfire::pipeline
