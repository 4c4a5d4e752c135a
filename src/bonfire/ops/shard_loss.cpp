#include "bonfire/ops/shard_loss.h"

#include "bonfire/ops/loss.h"

namespace bonfire {

namespace {

constexpr int kClasses = 1;  // the axis of logits

bool can_share_classes(const ShardContext& c, size_t logits) {
  const Sharding& split = c.shardings[logits];
  const DType dtype = c.inputs[logits].dtype;
  return split.is_split(kClasses) && split.blocks == 1 && c.attributes.number("label_smoothing") == 0 &&
         (dtype == DType::f32 || dtype == DType::f64);
}

// What both directions are made of. `logits` and `target` are numbers of inputs.
class SharedClasses {
 public:
  SharedClasses(ShardBuilder& builder, size_t logits, size_t target)
      : b(builder), x(b.add("full_precision", {b.input(logits)})), target_(b.input(target)) {
    const TensorSpec& spec = x.spec();
    row = spec.shape;
    row[kClasses] = 1;
    Shape beside;  // of the classes beside logits
    for (int i = kClasses; i < spec.shape.rank(); ++i) beside.push_back(i == kClasses ? spec.shape[i] : 1);
    const GraphValue classes = b.add("arange", {},
                                     {{"begin", b.context().place * spec.shape[kClasses]},
                                      {"step", 1},
                                      {"count", spec.shape[kClasses]},
                                      {"dtype", DType::i64},
                                      {"device_type", static_cast<int>(spec.device.type)},
                                      {"device_index", spec.device.index}});
    const GraphValue targets = b.reshape(target_, row);
    is_target = b.add("equal", {targets, b.reshape(classes, beside)});
    counts = b.add("not_equal", {targets, number(attributes().integer("ignore_index"), DType::i64)});
  }

  const Attributes& attributes() const { return b.context().attributes; }
  Reduction reduction() const { return static_cast<Reduction>(attributes().integer("reduction")); }
  GraphValue number(int64_t value, DType dtype) { return b.constant(value, {{}, dtype, x.spec().device}); }
  GraphValue zero() { return number(0, x.spec().dtype); }
  GraphValue over_classes(const char* op, GraphValue value) {
    return b.add(op, {value}, {{"axes", Shape{kClasses}}, {"keepdim", 1}});
  }
  GraphValue over_all(GraphValue value) {
    Shape axes;
    for (int i = 0; i < value.spec().shape.rank(); ++i) axes.push_back(i);
    return b.add("sum", {value}, {{"axes", axes}, {"keepdim", 0}});
  }

  ShardBuilder& b;
  GraphValue x, is_target, counts;  // [N, own classes, …] twice, [N, 1, …]
  Shape row;                        // [N, 1, …]

 private:
  GraphValue target_;
};

// loss = log Σ exp(x − M) − (x[target] − M), with M the maximum over all classes. The last term is divided by how many
// ranks have the target: 1, or 0 for a target that is no class, whose loss so is not a number.
std::vector<GraphValue> build_loss(ShardBuilder& b) {
  SharedClasses s(b, 0, 1);
  const DType dtype = s.x.spec().dtype;
  auto total = [&](GraphValue value) { return b.all_reduce(s.over_classes("sum", value), ShardBuilder::Over::sum); };
  const GraphValue largest = b.all_reduce(s.over_classes("max", s.x), ShardBuilder::Over::max);
  const GraphValue distance = b.add("sub", {s.x, largest});
  const GraphValue sum = total(b.add("exp", {distance}));
  const GraphValue expected = total(b.add("where", {s.is_target, distance, s.zero()}));
  const GraphValue known = total(b.add("cast", {s.is_target}, {{"dtype", dtype}}));
  const GraphValue log_of_sum = b.add("log", {sum});
  const GraphValue loss = b.add("sub", {log_of_sum, b.add("div", {expected, known})});
  const GraphValue losses = b.add("where", {s.counts, loss, s.zero()});
  const GraphValue count = s.over_all(s.counts);
  const TensorSpec& whole_log_sum = b.context().outputs[1];
  const GraphValue log_sum = b.reshape(b.add("add", {log_of_sum, largest}), whole_log_sum.shape);
  if (s.reduction() == Reduction::none) return {b.reshape(losses, b.context().outputs[0].shape), log_sum, count};
  const GraphValue all = s.over_all(losses);
  if (s.reduction() == Reduction::sum) return {all, log_sum, count};
  return {b.add("div", {all, b.add("cast", {count}, {{"dtype", dtype}})}), log_sum, count};
}

// dx = dloss (exp(x − log Σ exp) − onehot) where the target is not ignored, divided by the count for the mean.
std::vector<GraphValue> build_gradient(ShardBuilder& b) {  // dloss, logits, target, log_sum, count
  SharedClasses s(b, 1, 2);
  const DType dtype = s.x.spec().dtype;
  const GraphValue share = b.add("exp", {b.add("sub", {s.x, b.reshape(b.input(3), s.row)})});
  const GraphValue slope = b.add("sub", {share, b.add("cast", {s.is_target}, {{"dtype", dtype}})});
  GraphValue dloss = b.input(0);
  if (s.reduction() == Reduction::none) dloss = b.reshape(dloss, s.row);
  if (s.reduction() == Reduction::mean) dloss = b.add("div", {dloss, b.add("cast", {b.input(4)}, {{"dtype", dtype}})});
  return {b.add("mul", {slope, b.add("where", {s.counts, dloss, s.zero()})})};
}

}  // namespace

ShardRuleResult shard_cross_entropy(const ShardContext& c) {
  if (!can_share_classes(c, 0)) return {};
  ShardAnswer answer = c.on_whole();
  answer.inputs[0] = c.shardings[0];
  answer.build = build_loss;
  return answer;
}

ShardRuleResult shard_cross_entropy_gradient(const ShardContext& c) {
  if (!can_share_classes(c, 1)) return {};
  ShardAnswer answer = c.on_whole();
  answer.inputs[1] = answer.outputs[0] = c.shardings[1];
  answer.build = build_gradient;
  return answer;
}

}  // namespace bonfire
