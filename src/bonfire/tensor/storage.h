#pragma once
// Storage: a block of device memory that lives as long as someone holds it. Layout: how a logical shape lies in it.

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>

#include "bonfire/tensor/device.h"
#include "bonfire/tensor/dtype.h"
#include "bonfire/tensor/shape.h"

namespace bonfire {

class Storage {
 public:
  Storage(Device device, size_t bytes);
  // Of zeros, which is allocated when somebody first asks for its data(): by any thread.
  struct WhenUsed {};
  Storage(Device device, size_t bytes, WhenUsed) : device_(device), bytes_(bytes), is_late_(true) {}
  // In host memory that somebody else owns and other processes may see; beside it on a device with memory of its own.
  Storage(Device device, size_t bytes, std::shared_ptr<void> memory);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  Device device() const { return device_; }
  size_t bytes() const { return bytes_; }
  void* data() const {
    void* data = data_.load(std::memory_order_acquire);
    return data != nullptr || !is_late_ ? data : allocate_late();
  }
  bool is_allocated() const { return !is_late_ || data_.load(std::memory_order_acquire) != nullptr; }

 private:
  void* allocate_late() const;

  Device device_;
  size_t bytes_;
  std::shared_ptr<void> lent_;  // null: nobody else's
  bool is_late_ = false;
  mutable std::once_flag once_;
  mutable std::atomic<void*> data_{nullptr};
};

// Bytes of the storages of a device: of those that are alive, and the most there have been since the last reset.
struct StorageUse {
  size_t now = 0, most = 0;
};
StorageUse storage_use(Device device);
void reset_most_storage(Device device);  // to what is alive now

// A range inside a storage; the unit that plans bind to operands.
struct Buffer {
  std::shared_ptr<Storage> storage;
  size_t offset = 0;  // bytes

  void* data() const { return static_cast<char*>(storage->data()) + offset; }
  explicit operator bool() const { return storage != nullptr; }
};

// How a logical shape lies in memory: a dense permutation of its axes (slowest first), or blocked, a form that only
// temporaries of a plan have. Users always see the logical shape.
struct Layout {
  // The order of axes from slowest to fastest; empty means row-major.
  Shape order;
  // The size of the innermost block of axis 1 (nChw16c has 16), 0 for none.
  int16_t block = 0;

  bool row_major() const { return order.rank() == 0 && block == 0; }
  friend bool operator==(const Layout&, const Layout&) = default;
};

Layout channels_last();  // [N, C, H, W] stored as N, H, W, C
std::string to_string(const Layout& layout);
Shape strides_of(const Shape& shape, const Layout& layout);  // in elements, by logical axis; dense layouts only
size_t bytes_of(const Shape& shape, DType dtype, const Layout& layout = {});

// Whether both put every element of the shape at the same place: extents of 1 make layouts equal that look different.
bool same_places(const Shape& shape, const Layout& a, const Layout& b);

// Rearranges elements in host memory from one layout to another; a last block that is not full ends in zeros.
void convert_layout(const void* source, const Layout& from, void* target, const Layout& to, const Shape& shape,
                    DType dtype);

// What a value is: everything a shape rule sees.
struct TensorSpec {
  Shape shape;
  DType dtype = DType::f32;
  Device device;

  size_t bytes() const { return static_cast<size_t>(shape.count()) * size_of(dtype); }
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

std::string to_string(const TensorSpec& spec);  // "f32 [64, 10] cpu:0"

}  // namespace bonfire
