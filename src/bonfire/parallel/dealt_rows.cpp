#include "bonfire/parallel/dealt_rows.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/kernel/queue.h"

namespace bonfire::detail {

int64_t samples_of(std::span<const Tensor> batch) {
  for (const Tensor& tensor : batch) {
    if (!tensor.defined()) throw_error<ShapeError>("[data_parallel] a tensor of the batch is undefined");
    if (tensor.rank() == 0 || tensor.size(0) == 0)
      throw_error<ShapeError>(
          "[data_parallel] a tensor of the batch is {}: it has no samples to deal out; its first axis must be the "
          "samples",
          to_string(tensor.spec()));
    if (tensor.size(0) != batch[0].size(0))
      throw_error<ShapeError>("[data_parallel] the tensors of the batch have {} and {} samples; all need as many",
                              batch[0].size(0), tensor.size(0));
  }
  return batch[0].size(0);
}

HostRows::HostRows(const Tensor& batch) : batch_(batch), rows_(batch.size(0)) {
  const NodeOutput& output = batch.value().node->outputs[batch.value().index];
  if (output.buffer && batch.device().type == DeviceType::cpu) {
    if (output.ready) output.ready->wait();
    data_ = static_cast<const std::byte*>(output.buffer.data());
    return;
  }
  copy_.resize(batch.spec().bytes());
  batch.copy_to_host(copy_);
  data_ = copy_.data();
}

Tensor HostRows::deal(const data::Share& share, Device device) const {
  TensorSpec spec = batch_.spec();
  const size_t bytes = spec.bytes() / static_cast<size_t>(rows_);  // of a row
  spec.shape[0] = std::max<int64_t>(1, share.own);
  spec.device = device;
  Buffer buffer{std::make_shared<Storage>(device, std::max<size_t>(1, spec.bytes()))};
  std::vector<std::byte> together(device.type == DeviceType::cpu ? 0 : spec.bytes());  // to copy them at once
  auto* target = together.empty() ? static_cast<std::byte*>(buffer.data()) : together.data();
  for (int64_t row = 0; row < spec.shape[0]; ++row) {
    const auto place = static_cast<size_t>(share.own == 0 ? 0 : share.place(row));
    std::memcpy(target + static_cast<size_t>(row) * bytes, data_ + place * bytes, bytes);
  }
  if (!together.empty()) memory_of(device).copy_from_host(buffer.data(), together.data(), together.size());
  return Tensor::from_buffer(std::move(buffer), spec);
}

}  // namespace bonfire::detail
