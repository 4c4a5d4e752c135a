#include "bonfire/tensor/storage.h"

#include <array>
#include <cstring>

#include "bonfire/base/error.h"

namespace bonfire {

namespace {

struct Counter {
  std::atomic<size_t> now{0}, most{0};
};

constexpr size_t kDevicesOfAType = 64;
std::array<Counter, kDeviceTypes * kDevicesOfAType> counters;

// Devices beyond those are counted with others.
Counter& counter_of(Device device) {
  return counters[static_cast<size_t>(device.type) * kDevicesOfAType +
                  static_cast<size_t>(device.index) % kDevicesOfAType];
}

void count_allocated(Device device, size_t bytes) {
  Counter& counter = counter_of(device);
  const size_t now = counter.now.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  size_t most = counter.most.load(std::memory_order_relaxed);
  while (now > most && !counter.most.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
}

}  // namespace

StorageUse storage_use(Device device) {
  const Counter& counter = counter_of(device);
  return {counter.now.load(std::memory_order_relaxed), counter.most.load(std::memory_order_relaxed)};
}

void reset_most_storage(Device device) {
  Counter& counter = counter_of(device);
  counter.most.store(counter.now.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

Storage::Storage(Device device, size_t bytes)
    : device_(device), bytes_(bytes), data_(memory_of(device).allocate(bytes)) {
  count_allocated(device_, bytes_);
}

Storage::Storage(Device device, size_t bytes, std::shared_ptr<void> memory)
    : device_(device),
      bytes_(bytes),
      lent_(std::move(memory)),
      data_(memory_of(device).allocate_staged(lent_.get(), bytes)) {
  count_allocated(device_, bytes_);
}

Storage::~Storage() {
  if (!is_allocated()) return;
  counter_of(device_).now.fetch_sub(bytes_, std::memory_order_relaxed);
  DeviceMemory& memory = memory_of(device_);
  lent_ == nullptr ? memory.deallocate(data_, bytes_) : memory.deallocate_staged(data_, bytes_);
}

void* Storage::allocate_late() const {
  std::call_once(once_, [this] {
    DeviceMemory& memory = memory_of(device_);
    void* data = memory.allocate(bytes_);
    memory.fill_zero(data, bytes_);
    count_allocated(device_, bytes_);
    data_.store(data, std::memory_order_release);
  });
  return data_.load(std::memory_order_acquire);
}

Layout channels_last() { return {.order = {0, 2, 3, 1}}; }

std::string to_string(const Layout& layout) {
  if (layout.row_major()) return "row_major";
  std::string text = layout.order.rank() == 0                ? "row_major"
                     : layout.order == channels_last().order ? "channels_last"
                                                             : "order" + to_string(layout.order);
  return layout.block == 0 ? text : text + "/" + std::to_string(layout.block);
}

Shape strides_of(const Shape& shape, const Layout& layout) {
  BONFIRE_CHECK(layout.block == 0, "a blocked layout has no strides");
  if (layout.order.rank() == 0) return row_major_strides(shape);
  BONFIRE_CHECK(layout.order.rank() == shape.rank(), "layout {} for shape {}", to_string(layout), to_string(shape));
  Shape strides = shape;
  int64_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    int axis = static_cast<int>(layout.order[i]);
    strides[axis] = stride;
    stride *= shape[axis];
  }
  return strides;
}

size_t bytes_of(const Shape& shape, DType dtype, const Layout& layout) {
  int64_t count = shape.count();
  if (layout.block > 0 && shape[1] > 0)
    count = count / shape[1] * ((shape[1] + layout.block - 1) / layout.block * layout.block);
  return static_cast<size_t>(count) * size_of(dtype);
}

bool same_places(const Shape& shape, const Layout& a, const Layout& b) {
  if (a == b) return true;
  if (a.block != 0 || b.block != 0) return false;
  Shape first = strides_of(shape, a), second = strides_of(shape, b);
  for (int i = 0; i < shape.rank(); ++i)
    if (shape[i] > 1 && first[i] != second[i]) return false;
  return true;
}

namespace {

// Where each element lies, in elements.
class Places {
 public:
  Places(const Shape& shape, const Layout& layout) : block_(layout.block) {
    Shape extents = shape;
    if (block_ > 0) {  // [N, C / block, …, block] row-major: channels step over whole blocks
      BONFIRE_CHECK(layout.order.rank() == 0, "layout {} is not known", to_string(layout));
      extents[1] = (shape[1] + block_ - 1) / block_;
      strides_ = row_major_strides(extents);
      for (int i = 0; i < shape.rank(); ++i) strides_[i] *= block_;
    } else {
      strides_ = strides_of(shape, layout);
    }
  }
  int64_t operator()(const Shape& index) const {
    int64_t place = 0;
    for (int i = 0; i < index.rank(); ++i) {
      bool blocked = block_ > 0 && i == 1;
      place += blocked ? index[i] / block_ * strides_[i] + index[i] % block_ : index[i] * strides_[i];
    }
    return place;
  }
  bool even(int axis) const { return block_ == 0 || axis != 1; }  // whether neighbours are all stride(axis) apart
  int64_t stride(int axis) const { return strides_[axis]; }

 private:
  int64_t block_;
  Shape strides_;
};

template <int64_t size>
void move_elements(const void* source, const Places& read, void* target, const Places& write, const Shape& shape) {
  const auto* in = static_cast<const char*>(source);
  auto* out = static_cast<char*>(target);
  // Rows along the longest axis on which elements are evenly spaced in both.
  int along = -1;
  for (int i = 0; i < shape.rank(); ++i)
    if (read.even(i) && write.even(i) && (along < 0 || shape[i] > shape[along])) along = i;
  const int64_t row = along < 0 ? 1 : shape[along];
  const int64_t step_in = along < 0 ? 0 : read.stride(along) * size,
                step_out = along < 0 ? 0 : write.stride(along) * size;
  Shape index = shape;
  for (int i = 0; i < shape.rank(); ++i) index[i] = 0;
  for (int64_t n = shape.count(); n > 0; n -= row) {
    const char* from = in + read(index) * size;
    char* to = out + write(index) * size;
    for (int64_t i = 0; i < row; ++i) std::memcpy(to + i * step_out, from + i * step_in, size);
    for (int i = shape.rank() - 1; i >= 0; --i) {
      if (i == along) continue;
      if (++index[i] < shape[i]) break;
      index[i] = 0;
    }
  }
}

}  // namespace

void convert_layout(const void* source, const Layout& from, void* target, const Layout& to, const Shape& shape,
                    DType dtype) {
  size_t size = size_of(dtype);
  if (shape.count() == 0) return;  // there may be no memory at all
  if (from == to) {
    std::memcpy(target, source, bytes_of(shape, dtype, to));
    return;
  }
  if (to.block > 0) std::memset(target, 0, bytes_of(shape, dtype, to));
  switch (size) {
    case 1: return move_elements<1>(source, Places(shape, from), target, Places(shape, to), shape);
    case 2: return move_elements<2>(source, Places(shape, from), target, Places(shape, to), shape);
    case 4: return move_elements<4>(source, Places(shape, from), target, Places(shape, to), shape);
    default:
      BONFIRE_CHECK(size == 8, "elements of {} bytes", size);
      return move_elements<8>(source, Places(shape, from), target, Places(shape, to), shape);
  }
}

std::string to_string(const TensorSpec& spec) {
  return std::string(name_of(spec.dtype)) + " " + to_string(spec.shape) + " " + to_string(spec.device);
}

}  // namespace bonfire
