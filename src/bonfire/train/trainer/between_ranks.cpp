#include "bonfire/train/trainer/between_ranks.h"

#include "bonfire/parallel/fleet.h"

namespace bonfire::train {

namespace {

bool alone() { return fleet::world_size() == 1; }

void take_part_of_first(const Variable& variable) {
  if (fleet::mesh().size(Axis::data) == 1) return;
  comm::Group& same = fleet::group(Axis::data);
  std::vector<std::byte> bytes(variable.stored_spec().bytes());
  if (same.rank() == 0) bytes = variable.save_stored();
  same.broadcast({bytes.data(), bytes.size(), DType::u8}, 0);
  if (same.rank() != 0) variable.load_stored(bytes);
}

}  // namespace

bool is_first_rank() { return fleet::rank() == 0; }

void add_over_ranks(std::span<int64_t> counts) {
  if (!alone()) fleet::group().all_reduce({counts.data(), counts.size(), DType::i64}, comm::Reduce::sum);
}

void add_over_data(std::span<int64_t> counts) {
  if (fleet::mesh().size(Axis::data) > 1)
    fleet::group(Axis::data).all_reduce({counts.data(), counts.size(), DType::i64}, comm::Reduce::sum);
}

void add_over_data(std::span<double> sums) {
  if (fleet::mesh().size(Axis::data) > 1)
    fleet::group(Axis::data).all_reduce({sums.data(), sums.size(), DType::f64}, comm::Reduce::sum);
}

std::vector<int64_t> numbers_of_ranks(int64_t own) {
  if (alone()) return {own};
  std::vector<int64_t> all(static_cast<size_t>(fleet::world_size()));
  fleet::group().all_gather({&own, 1, DType::i64}, {all.data(), all.size(), DType::i64});
  return all;
}

std::string text_of_first_rank(const std::string& text) {
  if (alone()) return text;
  auto bytes = static_cast<int64_t>(text.size());
  fleet::group().broadcast({&bytes, 1, DType::i64}, 0);
  std::string result = is_first_rank() ? text : std::string(static_cast<size_t>(bytes), '\0');
  fleet::group().broadcast({result.data(), result.size(), DType::u8}, 0);
  return result;
}

void take_values_of_first_rank(const nn::StateDict& variables, std::optional<Axis> along) {
  if (along ? fleet::mesh().size(*along) == 1 : alone()) return;
  comm::Group& group = along ? fleet::group(*along) : fleet::group();
  const bool is_first = group.rank() == 0;
  for (const auto& [name, variable] : variables) {
    if (variable.slice().is_range()) continue;  // each has read its own
    if (!variable.slice().is_all()) {           // of those that have the same part
      take_part_of_first(variable);
      continue;
    }
    std::vector<std::byte> bytes(variable.spec().bytes());
    if (is_first) bytes = variable.save();
    group.broadcast({bytes.data(), bytes.size(), DType::u8}, 0);
    if (!is_first) variable.load(bytes);
  }
}

void require_same_on_ranks(const std::string& what, const comm::Settings& settings) {
  if (!alone()) comm::require_same(fleet::group(), what, settings);
}

}  // namespace bonfire::train
