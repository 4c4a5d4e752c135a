#include "bonfire/comm/all_reduce.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>

#include "bonfire/base/error.h"
#include "bonfire/kernel/kernel.h"

namespace bonfire::comm {
namespace {

struct Channels {
  std::mutex mutex;
  std::map<int, Channel> open;
  int next = 0;
};

Channels& channels() {
  static Channels& instance = *new Channels;  // never destroyed: plans of static objects may outlive it
  return instance;
}

OutputSpecs infer_all_reduce(const InferContext& context) {
  OutputSpecs outputs;
  for (const TensorSpec* input : context.inputs) {
    if (input->dtype != context.input(0).dtype)
      throw_error<ShapeError>("[all_reduce] the operands are {}; expected one dtype", describe_inputs(context));
    outputs.push_back(*input);
  }
  return outputs;
}

// Operands that the group reduces in one call.
struct Stretch {
  std::byte* begin;
  std::byte* end;
};

class AllReduceKernel final : public Kernel {
 public:
  AllReduceKernel(const GraphNode& node, std::vector<Layout> layouts)
      : channel_(static_cast<int>(node.attributes.integer("channel"))),
        communicator_(static_cast<size_t>(node.attributes.integer("communicator"))),
        reduce_(static_cast<Reduce>(node.attributes.integer("reduce"))),
        dtype_(node.outputs[0].dtype),
        layouts_(std::move(layouts)) {
    for (const TensorSpec& output : node.outputs) {
      bytes_.push_back(output.bytes());
      shapes_.push_back(output.shape);
    }
  }

  void run(const Run& run) override {
    const Channel channel = channel_at(channel_);
    for (size_t i = 0; i < bytes_.size(); ++i)
      if (run.outputs[i] != run.inputs[i]) std::memcpy(run.outputs[i], run.inputs[i], bytes_[i]);
    const bool differ = channel.layouts_differ->load();
    if (differ) rearrange(run, true);
    for (const Stretch& stretch : stretches(channel, run))
      channel.communicators.at(communicator_)
          ->all_reduce({stretch.begin, static_cast<size_t>(stretch.end - stretch.begin) / size_of(dtype_), dtype_},
                       reduce_);
    if (differ) rearrange(run, false);
  }

 private:
  // Into row-major order, or back.
  void rearrange(const Run& run, bool into_row_major) const {
    std::vector<std::byte> copy;
    for (size_t i = 0; i < bytes_.size(); ++i) {
      if (same_places(shapes_[i], layouts_[i], {})) continue;
      auto* data = run.output<std::byte>(i);
      copy.assign(data, data + bytes_[i]);
      const Layout &from = into_row_major ? layouts_[i] : Layout{}, &to = into_row_major ? Layout{} : layouts_[i];
      convert_layout(copy.data(), from, data, to, shapes_[i], dtype_);
    }
  }

  // Only inside one of the channel's memories do neighbours belong together: what lies between other operands is not
  // ours. The order and the gaps there are the same on all ranks.
  std::vector<Stretch> stretches(const Channel& channel, const Run& run) const {
    constexpr std::ptrdiff_t kGap = 64;  // bytes: variables side by side are aligned so
    struct Operand {
      size_t memory;
      Stretch stretch;
    };
    std::vector<Operand> list;
    for (size_t i = 0; i < bytes_.size(); ++i) {
      auto* begin = run.output<std::byte>(i);
      Stretch own{begin, begin + bytes_[i]};
      list.push_back({memory_of(channel, own), own});
    }
    const size_t nowhere = channel.memories.size();
    std::stable_sort(list.begin(), list.end(), [&](const Operand& a, const Operand& b) {
      return a.memory != b.memory ? a.memory < b.memory : a.memory != nowhere && a.stretch.begin < b.stretch.begin;
    });
    std::vector<Stretch> merged;
    for (size_t i = 0; i < list.size(); ++i) {
      const Stretch& one = list[i].stretch;
      if (i > 0 && list[i].memory != nowhere && list[i].memory == list[i - 1].memory &&
          one.begin - merged.back().end < kGap) {
        merged.back().end = one.end;
      } else {
        merged.push_back(one);
      }
    }
    return merged;
  }

  // Which of the memories it lies in; as many as there are: in none.
  static size_t memory_of(const Channel& channel, const Stretch& stretch) {
    auto found = std::find_if(channel.memories.begin(), channel.memories.end(), [&](const Channel::Memory& memory) {
      const std::byte* first = memory.buffer.get();
      return std::greater_equal<>()(stretch.begin, first) && std::less_equal<>()(stretch.end, first + memory.bytes);
    });
    return static_cast<size_t>(found - channel.memories.begin());
  }

  int channel_;
  size_t communicator_;
  Reduce reduce_;
  DType dtype_;
  std::vector<Layout> layouts_;
  std::vector<size_t> bytes_;
  std::vector<Shape> shapes_;
};

std::vector<Candidate> all_reduce_candidates(const KernelRequest& request) {
  Candidate candidate =
      row_major_candidate(request, fmt::format("communicator {}", request.node.attributes.integer("communicator")));
  for (size_t i = 0; i < request.node.inputs.size(); ++i) {
    candidate.in_place.emplace_back(static_cast<int>(i), static_cast<int>(i));
    if (request.arriving[i].block == 0) candidate.input_layouts[i] = candidate.output_layouts[i] = request.arriving[i];
  }
  candidate.build = [&node = request.node, layouts = candidate.output_layouts] {
    return std::make_unique<AllReduceKernel>(node, layouts);
  };
  return {std::move(candidate)};
}

const Op& registered_all_reduce_op = register_op({.name = "all_reduce",
                                                  .infer = infer_all_reduce,
                                                  .traits = Trait::collective | Trait::stateful,
                                                  .amp = AmpRule::full});
[[maybe_unused]] const bool registered[] = {
    register_kernel("all_reduce", DeviceType::cpu, all_reduce_candidates),
    register_kernel("all_reduce", DeviceType::cuda, all_reduce_candidates),
};

}  // namespace

int open_channel(Channel channel) {
  std::lock_guard lock(channels().mutex);
  channels().open.emplace(channels().next, std::move(channel));
  return channels().next++;
}

void change_channel(int number, Channel other) {
  std::lock_guard lock(channels().mutex);
  channels().open.at(number) = std::move(other);
}

void close_channel(int number) {
  std::lock_guard lock(channels().mutex);
  channels().open.erase(number);
}

Channel channel_at(int number) {
  std::lock_guard lock(channels().mutex);
  auto found = channels().open.find(number);
  if (found == channels().open.end())
    throw_error<CommError>("[comm] channel {} is closed: the job has been left, and its steps cannot run", number);
  return found->second;
}

const Op& all_reduce_op() { return registered_all_reduce_op; }

Tensor all_reduce(const Tensor& value, Reduce reduce, int channel, int64_t name) {
  return trace_op(all_reduce_op(), {value},
                  {{"reduce", static_cast<int>(reduce)},
                   {"channel", channel},
                   {"communicator", 0},
                   {"names", std::span(&name, 1)}});
}

}  // namespace bonfire::comm
