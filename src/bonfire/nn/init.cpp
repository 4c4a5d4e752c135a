#include "bonfire/nn/init.h"

#include <cmath>
#include <utility>
#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/base/random.h"
#include "bonfire/base/thread_pool.h"
#include "bonfire/graph/step_context.h"

namespace bonfire::nn::init {

namespace {

// Streams of parameters have the highest bit, those of a step's random ops (random_stream) never do.
constexpr uint64_t kParameterStreams = 1ULL << 63;

// Loads value(index) into every element.
template <class Value>
void fill(const Variable& variable, const Value& value) {
  constexpr int64_t kGrain = 1 << 16;  // elements worth a thread of their own
  int64_t count = variable.shape().count();
  dispatch(variable.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, bool>) {
      throw_error<ShapeError>("[init] {} is bool; parameters are numbers", variable.name());
    } else {
      std::vector<T> values(static_cast<size_t>(count));
      ThreadPool threads(count > kGrain ? available_cores() : 1);
      threads.parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(i)] = static_cast<T>(value(i));
      });
      variable.load(std::as_bytes(std::span<const T>(values)));
    }
  });
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

Rule zeros() {
  return [](const Variable& variable) { fill(variable, [](int64_t) { return 0.0F; }); };
}

Rule ones() {
  return [](const Variable& variable) { fill(variable, [](int64_t) { return 1.0F; }); };
}

Rule uniform(double low, double high) {
  return [low, high](const Variable& variable) {
    uint64_t seed = StepContext::current().random.seed, stream = next_stream();
    fill(variable, [=](int64_t i) {
      return static_cast<float>(low + (high - low) * uniform_at(seed, stream, static_cast<uint64_t>(i)));
    });
  };
}

Rule normal(double deviation, double mean) {
  return [deviation, mean](const Variable& variable) {
    uint64_t seed = StepContext::current().random.seed, stream = next_stream();
    fill(variable, [=](int64_t i) {
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

Rule kaiming_normal_fan_out() {
  return [](const Variable& variable) {
    normal(std::sqrt(2.0 / static_cast<double>(fans_of(variable.shape()).out)))(variable);
  };
}

}  // namespace bonfire::nn::init
