#include "bonfire/parallel/pipeline/saying_where.h"

#include <new>
#include <regex>

#include "bonfire/base/error.h"
#include "bonfire/parallel/fleet.h"

namespace bonfire::pipeline {
namespace {

constexpr const char* kHasStage = " has stage ";

// Numbers of neighbours along an axis are as far apart anywhere in the mesh.
int stage_of(int rank) {
  const std::vector<int> stages = fleet::mesh().ranks_along(Axis::pipeline);
  return stages.size() < 2 ? 0 : rank / (stages[1] - stages[0]) % static_cast<int>(stages.size());
}

// Groups name ranks like this: "rank 3 (host, process 4711)". Of several the last is the one that was lost first: those
// before it say whom they have lost.
std::string with_stage_of_rank(const std::string& text) {
  static const std::regex name("rank ([0-9]+) \\(");
  int rank = -1;
  for (std::sregex_iterator one(text.begin(), text.end(), name), end; one != end; ++one) rank = std::stoi((*one)[1]);
  if (rank < 0 || rank >= fleet::mesh().world() || text.find(kHasStage) != std::string::npos) return text;
  return fmt::format("{} (rank {}{}{} of {})", text, rank, kHasStage, stage_of(rank),
                     fleet::mesh().size(Axis::pipeline));
}

template <class Kind>
[[noreturn]] void say_where(const std::function<std::string()>& place, const Kind& error) {
  const std::string text = error.what();
  const bool has_place = text.find("[pipeline]") != std::string::npos;
  throw Kind(with_stage_of_rank(has_place ? text : fmt::format("{}: {}", place(), text)));
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
