#pragma once
// Device: a name for a place ("cpu:0", "cuda:1"). DeviceMemory: what such a place can do with bytes. A backend
// registers how to open its devices; everything above asks by Device.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bonfire {

enum class DeviceType : uint8_t { cpu, cuda };
inline constexpr int kDeviceTypes = 2;

struct Device {
  DeviceType type = DeviceType::cpu;
  int16_t index = 0;

  friend bool operator==(const Device&, const Device&) = default;
  friend auto operator<=>(const Device&, const Device&) = default;
};

std::string to_string(Device device);  // "cpu:0"

// "cpu", "cpu:N", "cuda", "cuda:N". ConfigError for anything else, DeviceError when the device is not there (the
// message names those that are).
Device parse_device(std::string_view name);

// The first GPU when there is one, else cpu:0.
Device default_device();

std::vector<Device> devices();       // all that are there; CPU devices are as many as asked for, cpu:0 is listed
void require_device(Device device);  // DeviceError, naming those that are there, when it is not

// Memory of one device. Thread-safe. Copies are complete when the call returns.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual void* allocate(size_t bytes) = 0;  // 64-byte aligned; DeviceError when there is none
  virtual void deallocate(void* data, size_t bytes) noexcept = 0;
  virtual void copy_from_host(void* target, const void* source, size_t bytes) = 0;
  virtual void copy_to_host(void* target, const void* source, size_t bytes) = 0;
  virtual void fill_zero(void* target, size_t bytes) = 0;
  // A block that collectives find in `host`, memory that outlives it and that other ranks may see. On a device that
  // works in host memory it is that memory itself.
  virtual void* allocate_staged(void* host, size_t bytes) = 0;
  virtual void deallocate_staged(void* data, size_t bytes) noexcept = 0;
};

DeviceMemory& memory_of(Device device);

// How a backend makes itself known (once, before main or at first use).
struct DeviceBackend {
  int (*count)();  // devices of this type on this machine
  DeviceMemory& (*memory)(int index);
};
void register_device_backend(DeviceType type, DeviceBackend backend);

}  // namespace bonfire
