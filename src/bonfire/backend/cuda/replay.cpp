#include "bonfire/backend/cuda/replay.h"

#include <algorithm>
#include <cstring>

#include "bonfire/base/error.h"

namespace bonfire::cuda {

namespace {

constexpr size_t kAlignment = 256;  // bytes, of slots

bool is_on_device(const void* address) {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, address), "cudaPointerGetAttributes");
  return attributes.type == cudaMemoryTypeDevice;
}

}  // namespace

std::vector<std::vector<int>> dependencies(const std::vector<Accesses>& steps) {
  std::vector<std::vector<int>> waits(steps.size());
  std::vector<std::vector<bool>> before(steps.size());  // everything that is done when a step begins
  for (size_t i = 0; i < steps.size(); ++i) {
    before[i].resize(i);
    for (size_t j = i; j-- > 0;) {
      if (before[i][j] || !must_wait(steps[i], steps[j])) continue;
      waits[i].push_back(static_cast<int>(j));
      before[i][j] = true;
      for (size_t k = 0; k < j; ++k)
        if (before[j][k]) before[i][k] = true;
    }
  }
  return waits;
}

void run_step(const Program& program, size_t index, const std::vector<void*>& addresses, const StagedSteps& staged,
              cudaStream_t stream, StepPart part) {
  const ProgramStep& step = program.steps[index];
  std::vector<void*> inputs, outputs;
  for (int position : step.inputs) inputs.push_back(addresses[static_cast<size_t>(position)]);
  for (int position : step.outputs) outputs.push_back(addresses[static_cast<size_t>(position)]);
  void* workspace = step.workspace < 0 ? nullptr : addresses[static_cast<size_t>(step.workspace)];
  try {
    if (!step.line) {
      step.kernel->run({inputs, outputs, workspace, nullptr, stream});
    } else {
      if (part != StepPart::end) staged[index]->enqueue_begin(inputs, outputs, stream);
      if (part != StepPart::begin) staged[index]->enqueue_end(outputs, stream);
    }
    check(cudaGetLastError(), "the kernel's launch");
  } catch (const std::exception& error) {
    std::throw_with_nested(
        DeviceError(fmt::format("[{}] failed on {}: {}", step.label, to_string(program.device), error.what())));
  }
}

Replay::Replay(const Submission& submission, const StagedSteps& staged, int device, cudaStream_t stream)
    : device_(device), staged_(staged) {
  assign_slots(submission);
  make_copy_nodes(submission);
  capture(submission, stream);
}

Replay::~Replay() {
  execution_ = {};
  if (slots_ != nullptr) memory_of_cuda(device_).deallocate(slots_, slot_bytes_);
}

void Replay::assign_slots(const Submission& submission) {
  const Program& program = *submission.program;
  addresses_ = submission.addresses;
  fixed_ = submission.addresses;
  std::vector<size_t> offsets(addresses_.size());
  auto reserve = [&](size_t bytes) {
    return std::exchange(slot_bytes_, slot_bytes_ + (bytes + kAlignment - 1) / kAlignment * kAlignment);
  };
  size_t scalars = reserve(submission.scalars.size());
  for (size_t i = 0; i < addresses_.size(); ++i) {
    const Address& address = program.addresses[i];
    if (address.kind == AddressKind::fixed) continue;
    fixed_[i] = nullptr;
    offsets[i] = address.kind == AddressKind::scalars ? scalars + address.offset : reserve(address.bytes);
  }
  slots_ = memory_of_cuda(device_).allocate(slot_bytes_);
  scalars_ = static_cast<std::byte*>(slots_) + scalars;
  for (size_t i = 0; i < addresses_.size(); ++i)
    if (program.addresses[i].kind != AddressKind::fixed) addresses_[i] = static_cast<std::byte*>(slots_) + offsets[i];
}

void Replay::make_copy_nodes(const Submission& submission) {
  const Program& program = *submission.program;
  auto add = [](std::vector<CopyNode>& nodes, int position) {
    if (nodes.empty() || nodes.back().positions.size() == CopyList::kItems) nodes.emplace_back();
    nodes.back().positions.push_back(position);
  };
  for (size_t i = 0; i < program.addresses.size(); ++i) {
    if (program.addresses[i].kind == AddressKind::feed) {
      if (is_on_device(submission.addresses[i])) {
        add(copies_in_, static_cast<int>(i));
      } else {
        host_feeds_.push_back(static_cast<int>(i));
      }
    }
    if (program.addresses[i].kind == AddressKind::output) add(copies_out_, static_cast<int>(i));
  }
  size_t bytes = submission.scalars.size();
  for (size_t offset = 0, part = 0; offset < bytes; offset += CopyList::kInlineBytes, ++part) {
    if (part >= copies_in_.size()) copies_in_.emplace_back();
    CopyNode& node = copies_in_[part];
    node.list.inline_bytes = static_cast<int32_t>(std::min<size_t>(CopyList::kInlineBytes, bytes - offset));
    node.list.inline_target = scalars_ + offset;
    node.inline_offset = offset;
  }
}

void Replay::fill(CopyNode& node, const Submission& submission, AddressKind kind) const {
  node.list.item_count = static_cast<int32_t>(node.positions.size());
  for (size_t i = 0; i < node.positions.size(); ++i) {
    auto position = static_cast<size_t>(node.positions[i]);
    void *slot = addresses_[position], *outside = submission.addresses[position];
    bool in = kind == AddressKind::feed;
    node.list.items[i] = {in ? outside : slot, in ? slot : outside, submission.program->addresses[position].bytes};
  }
  if (node.list.inline_bytes > 0)
    std::memcpy(node.list.inline_data, submission.scalars.data() + node.inline_offset,
                static_cast<size_t>(node.list.inline_bytes));
}

void Replay::capture(const Submission& submission, cudaStream_t stream) {
  const Program& program = *submission.program;
  std::vector<Accesses> accesses;
  auto touch = [&](std::vector<Accesses::Range>& ranges, int position) {
    auto p = static_cast<size_t>(position);
    ranges.push_back(range_at(addresses_[p], program.addresses[p].bytes));
  };
  for (CopyNode& node : copies_in_) {
    Accesses& own = accesses.emplace_back();
    for (int position : node.positions) touch(own.writes, position);
    own.writes.push_back(range_at(node.list.inline_target, static_cast<size_t>(node.list.inline_bytes)));
  }
  for (const ProgramStep& step : program.steps) {
    accesses.push_back(accesses_of(program, step, addresses_));
    if (!step.line) continue;
    // Steps in lines begin in their order, and end when they may. What that is told by is no memory of the device.
    const auto order = range_at(this, 1), own = range_at(&step, 1);
    Accesses end{{}, {accesses.back().writes}};
    end.writes.push_back(own);
    accesses.back().writes = {order, own};
    accesses.push_back(std::move(end));
  }
  for (CopyNode& node : copies_out_) {
    Accesses& own = accesses.emplace_back();
    for (int position : node.positions) touch(own.reads, position);
  }
  std::vector<std::vector<int>> waits = dependencies(accesses);

  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  std::vector<std::vector<cudaGraphNode_t>> ends(accesses.size());  // of each step: the nodes others wait for
  auto record = [&](size_t index, auto&& body) {
    std::vector<cudaGraphNode_t> after;
    for (int wait : waits[index])
      after.insert(after.end(), ends[static_cast<size_t>(wait)].begin(), ends[static_cast<size_t>(wait)].end());
    check(cudaStreamUpdateCaptureDependencies(stream, after.data(), nullptr, after.size(),
                                              cudaStreamSetCaptureDependencies),
          "cudaStreamUpdateCaptureDependencies");
    body();
    cudaStreamCaptureStatus status{};
    const cudaGraphNode_t* nodes = nullptr;
    const cudaGraphEdgeData* edges = nullptr;
    size_t count = 0;
    check(cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &nodes, &edges, &count),
          "cudaStreamGetCaptureInfo");
    ends[index].assign(nodes, nodes + count);
  };
  cudaGraph_t captured = nullptr;
  try {
    size_t index = 0;
    auto record_copies = [&](std::vector<CopyNode>& nodes, AddressKind kind) {
      for (CopyNode& node : nodes) {
        fill(node, submission, kind);
        record(index, [&] { start_copies(node.list, stream); });
        node.node = ends[index++].at(0);
      }
    };
    record_copies(copies_in_, AddressKind::feed);
    for (size_t step = 0; step < program.steps.size(); ++step) {
      auto record_step = [&](StepPart part) {
        record(index++, [&] { run_step(program, step, addresses_, staged_, stream, part); });
      };
      record_step(program.steps[step].line ? StepPart::begin : StepPart::all);
      if (program.steps[step].line) record_step(StepPart::end);
    }
    record_copies(copies_out_, AddressKind::output);
  } catch (...) {
    cudaStreamEndCapture(stream, &captured);
    if (captured != nullptr) cudaGraphDestroy(captured);
    cudaGetLastError();
    throw;
  }
  check(cudaStreamEndCapture(stream, &captured), "cudaStreamEndCapture");
  GraphHandle graph(captured);
  cudaGraphExec_t execution = nullptr;
  check(cudaGraphInstantiate(&execution, captured, 0), "cudaGraphInstantiate");
  execution_ = GraphExecution(execution);
  graph_ = std::move(graph);
}

bool Replay::fits(const Submission& submission) const {
  for (size_t i = 0; i < fixed_.size(); ++i)
    if (fixed_[i] != nullptr && fixed_[i] != submission.addresses[i]) return false;
  return std::all_of(staged_.begin(), staged_.end(), [](const auto& step) { return step == nullptr || step->fits(); });
}

void Replay::submit(const Submission& submission, cudaStream_t stream) {
  auto update = [&](std::vector<CopyNode>& nodes, AddressKind kind) {
    for (CopyNode& node : nodes) {
      fill(node, submission, kind);
      void* arguments[1];
      cudaKernelNodeParams parameters = copy_kernel(node.list, arguments);
      check(cudaGraphExecKernelNodeSetParams(execution_.get(), node.node, &parameters),
            "cudaGraphExecKernelNodeSetParams");
    }
  };
  for (int position : host_feeds_) {
    auto p = static_cast<size_t>(position);
    check(cudaMemcpyAsync(addresses_[p], submission.addresses[p], submission.program->addresses[p].bytes,
                          cudaMemcpyHostToDevice, stream),
          "cudaMemcpyAsync");
  }
  update(copies_in_, AddressKind::feed);
  update(copies_out_, AddressKind::output);
  check(cudaGraphLaunch(execution_.get(), stream), "cudaGraphLaunch");
}

}  // namespace bonfire::cuda
