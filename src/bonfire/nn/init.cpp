#include "bonfire/nn/init.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/base/random.h"
#include "bonfire/graph/step_context.h"

namespace bonfire::nn::init {

namespace {

// Streams of parameters have the highest bit, those of a step's random ops (random_stream) never do.
constexpr uint64_t kParameterStreams = 1ULL << 63;

// value(index) for every element.
template <class Value>
void begin_with(const Variable& variable, Value value) {
  if (variable.dtype() == DType::boolean)
    throw_error<ShapeError>("[init] {} is bool; parameters are numbers", variable.name());
  variable.set_first_values(first_values(std::move(value)));
}

uint64_t next_stream() { return kParameterStreams | StepContext::current().random.parameters++; }

}  // namespace

Fans fans_of(const Shape& shape) {
  if (shape.rank() < 2)
    throw_error<ShapeError>("[init] a parameter of shape {} has no fan-in; expected [out, in, ...]", to_string(shape));
  int64_t window = 1;
  for (int axis = 2; axis < shape.rank(); ++axis) window *= shape[axis];
  return {shape[1] * window, shape[0] * window};
}

Rule constant(double number) {
  return [number = static_cast<float>(number)](const Variable& variable) {
    begin_with(variable, [number](int64_t) { return number; });
  };
}

Rule zeros() { return constant(0); }
Rule ones() { return constant(1); }

Rule uniform(double low, double high) {
  return [low, high](const Variable& variable) {
    uint64_t seed = StepContext::current().random.seed, stream = next_stream();
    begin_with(variable, [=](int64_t i) {
      return static_cast<float>(low + (high - low) * uniform_at(seed, stream, static_cast<uint64_t>(i)));
    });
  };
}

Rule normal(double deviation, double mean) {
  return [deviation, mean](const Variable& variable) {
    uint64_t seed = StepContext::current().random.seed, stream = next_stream();
    begin_with(variable, [=](int64_t i) {
      return static_cast<float>(mean + deviation * normal_at(seed, stream, static_cast<uint64_t>(i)));
    });
  };
}

Rule kaiming_uniform(double a) {
  return [a](const Variable& variable) {
    double bound = std::sqrt(6.0 / ((1 + a * a) * static_cast<double>(fans_of(variable.shape()).in)));
    uniform(-bound, bound)(variable);
  };
}

Rule bias_of(const Shape& weight) {
  int64_t fan_in = fans_of(weight).in;
  double bound = fan_in > 0 ? 1 / std::sqrt(static_cast<double>(fan_in)) : 0;
  return uniform(-bound, bound);
}

Rule xavier_uniform() {
  return [](const Variable& variable) {
    Fans fans = fans_of(variable.shape());
    double bound = std::sqrt(6.0 / static_cast<double>(fans.in + fans.out));
    uniform(-bound, bound)(variable);
  };
}

void apply(const Rule& chosen, const Rule& usual, const Variable& variable) {
  if (!StepContext::current().place.skips_first_values) (chosen ? chosen : usual)(variable);
}

Skip::Skip() : before_(std::exchange(StepContext::current().place.skips_first_values, true)) {}
Skip::~Skip() { StepContext::current().place.skips_first_values = before_; }

Rule with_zero_row(Rule rule, int64_t row) {
  return [rule = std::move(rule), row](const Variable& table) {
    rule(table);
    const int64_t size = table.shape().count() / table.shape()[0], begin = row * size, end = begin + size;
    if (const FirstValues values = table.first_values()) {
      table.set_first_values([values, begin, end](int64_t from, int64_t count, DType dtype, std::byte* target) {
        values(from, count, dtype, target);
        const int64_t first = std::max(from, begin), last = std::min(from + count, end);
        const auto element = static_cast<int64_t>(size_of(dtype));
        if (first < last) std::fill_n(target + (first - from) * element, (last - first) * element, std::byte{0});
      });
    } else {  // a rule that has loaded it
      std::vector<std::byte> bytes = table.save();
      const auto element = static_cast<int64_t>(size_of(table.dtype()));
      std::fill_n(bytes.begin() + begin * element, size * element, std::byte{0});
      table.load(bytes);
    }
  };
}

Rule kaiming_normal_fan_out() {
  return [](const Variable& variable) {
    normal(std::sqrt(2.0 / static_cast<double>(fans_of(variable.shape()).out)))(variable);
  };
}

}  // namespace bonfire::nn::init
