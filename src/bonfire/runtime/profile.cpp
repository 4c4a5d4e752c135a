#include "bonfire/runtime/profile.h"

#include <algorithm>
#include <limits>
#include <map>

#include "bonfire/base/error.h"

namespace bonfire::runtime {

namespace {

double median(std::vector<double> values) {
  auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Sum {
  double seconds = 0, operations = 0, bytes = 0;
  int nodes = 0;
};

std::string speeds(double seconds, double operations, double bytes) {
  std::string products = operations > 0 ? fmt::format("{:8.1f}", operations / seconds * 1e-9) : std::string(8, ' ');
  return fmt::format("{} {:7.1f}", products, bytes / seconds * 1e-9);
}

void synchronize_devices(const Plan& plan) {
  for (const PlanProgram& program : plan.programs) queue_of(program.program->device).synchronize();
}

}  // namespace

double operations_of(const GraphNode& node) {
  std::string_view name = node.name();
  const TensorSpec& result = node.outputs[0];
  if (name == "matmul" || name == "matmul_bias_act") {
    const Shape& a = node.inputs[0].spec().shape;
    return 2.0 * static_cast<double>(result.shape.count()) *
           static_cast<double>(a[node.attributes.flag("transpose_a") ? -2 : -1]);
  }
  bool forward = name == "conv2d" || name == "conv2d_bias_act";
  if (forward || name == "conv2d_input_gradient" || name == "conv2d_weight_gradient") {
    // Each element of y is a sum over one filter.
    const Shape& weight = name == "conv2d_weight_gradient" ? result.shape : node.inputs[1].spec().shape;
    const Shape& y = forward ? result.shape : node.inputs[0].spec().shape;
    int64_t filter = weight.count() / std::max<int64_t>(1, weight[0]);
    return 2.0 * static_cast<double>(y.count()) * static_cast<double>(filter);
  }
  return 0;
}

PlanNote note_of(const GraphNode& node, const Candidate& candidate) {
  PlanNote note{.node = std::string(node.name()),
                .path = node.path,
                .candidate = candidate.name,
                .again = node.recomputed,
                .output_layouts = candidate.output_layouts,
                .result = {},
                .error = candidate.error};
  for (const GraphValue& input : node.inputs) note.bytes += static_cast<double>(input.spec().bytes());
  for (const TensorSpec& output : node.outputs) note.bytes += static_cast<double>(output.bytes());
  if (!node.outputs.empty()) {
    note.result = node.outputs[0];
    note.operations = operations_of(node);
  }
  return note;
}

void start_profile(const Plan& plan) {
  synchronize_devices(plan);
  for (const PlanProgram& program : plan.programs) program.program->times = std::make_shared<StepTimes>();
}

void stop_profile(const Plan& plan) {
  synchronize_devices(plan);
  for (const PlanProgram& program : plan.programs) program.program->times = nullptr;
}

std::vector<NodeTime> profile_of(const Plan& plan) {
  synchronize_devices(plan);
  std::vector<NodeTime> times;
  for (const PlanNote& note : plan.notes) {
    if (note.program < 0) continue;
    const Program& program = *plan.programs[static_cast<size_t>(note.program)].program;
    std::vector<double> seconds;
    if (program.times != nullptr)
      for (const std::vector<double>& submission : program.times->seconds)
        if (submission.size() == program.steps.size()) seconds.push_back(submission[static_cast<size_t>(note.step)]);
    if (!seconds.empty()) times.push_back({&note, median(std::move(seconds))});
  }
  return times;
}

std::vector<NodeSpan> spans_of(const Plan& plan) {
  synchronize_devices(plan);
  std::vector<NodeSpan> spans;
  for (size_t p = 0; p < plan.programs.size(); ++p) {
    const Program& program = *plan.programs[p].program;
    if (program.times == nullptr) continue;
    std::vector<const PlanNote*> notes(program.steps.size());
    for (const PlanNote& note : plan.notes)
      if (note.program == static_cast<int>(p)) notes[static_cast<size_t>(note.step)] = &note;
    for (size_t submission = 0; submission < program.times->seconds.size(); ++submission) {
      const std::vector<double>&begins = program.times->begins[submission],
            &seconds = program.times->seconds[submission];
      for (size_t step = 0; step < seconds.size(); ++step)
        if (notes[step] != nullptr)
          spans.push_back({notes[step], program.device, begins[step], seconds[step], program.steps[step].line});
    }
  }
  return spans;
}

std::vector<double> submission_seconds(const Plan& plan) {
  synchronize_devices(plan);
  std::vector<double> begins, ends;
  for (const PlanProgram& one : plan.programs) {
    const Program& program = *one.program;
    if (program.times == nullptr) continue;
    const size_t count = program.times->seconds.size();
    begins.resize(std::max(begins.size(), count), std::numeric_limits<double>::infinity());
    ends.resize(begins.size(), 0);
    for (size_t i = 0; i < count; ++i)
      for (size_t step = 0; step < program.steps.size(); ++step) {
        if (program.steps[step].line) continue;
        const double begin = program.times->begins[i][step];
        begins[i] = std::min(begins[i], begin);
        ends[i] = std::max(ends[i], begin + program.times->seconds[i][step]);
      }
  }
  std::vector<double> seconds;
  for (size_t i = 0; i < begins.size(); ++i) seconds.push_back(std::max(0.0, ends[i] - begins[i]));
  return seconds;
}

std::string print_profile(const Plan& plan) {
  std::vector<NodeTime> times = profile_of(plan);
  const bool several = devices_of(plan).size() > 1;
  double total = 0;
  std::map<std::string, Sum> by_op;
  for (const NodeTime& time : times) {
    total += time.seconds;
    Sum& sum = by_op[time.note->node];
    sum.seconds += time.seconds;
    sum.operations += time.note->operations;
    sum.bytes += time.note->bytes;
    ++sum.nodes;
  }
  std::string text =
      fmt::format("{:>9} {:>6} {:>8} {:>7} {:>6}  node (candidate)\n", "us", "share", "GFLOP/s", "GB/s", "error");
  for (const NodeTime& time : times) {
    const PlanNote& note = *time.note;
    std::string layout = note.output_layouts.empty() ? "" : to_string(note.output_layouts[0]);
    const std::string device = several ? " on " + to_string(note.result.device) : "";
    text += fmt::format(
        "{:9.1f} {:5.1f}% {} {:>6}  {} ({}) {}{} {} {}\n", time.seconds * 1e6, 100 * time.seconds / total,
        speeds(time.seconds, note.operations, note.bytes), fmt::format("{:g}x", note.error), note.node, note.candidate,
        std::string(name_of(note.result.dtype)) + to_string(note.result.shape), device, layout, note.path);
  }
  std::vector<std::pair<std::string, Sum>> sums(by_op.begin(), by_op.end());
  std::sort(sums.begin(), sums.end(), [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  text += fmt::format("sums by op, {:.1f} us in all\n", total * 1e6);
  for (const auto& [op, sum] : sums)
    text += fmt::format("{:9.1f} {:5.1f}% {}  {} x {}\n", sum.seconds * 1e6, 100 * sum.seconds / total,
                        speeds(sum.seconds, sum.operations, sum.bytes), sum.nodes, op);
  return text;
}

}  // namespace bonfire::runtime
