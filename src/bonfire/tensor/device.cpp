#include "bonfire/tensor/device.h"

#include <charconv>

#include "bonfire/base/error.h"

namespace bonfire {

namespace {

DeviceBackend& backend_of(DeviceType type) {
  static DeviceBackend backends[kDeviceTypes] = {};
  return backends[static_cast<int>(type)];
}

int count_of(DeviceType type) {
  const DeviceBackend& backend = backend_of(type);
  return backend.count == nullptr ? 0 : backend.count();
}

}  // namespace

std::string to_string(Device device) {
  return (device.type == DeviceType::cpu ? "cpu:" : "cuda:") + std::to_string(device.index);
}

Device parse_device(std::string_view name) {
  size_t colon = name.find(':');
  std::string_view kind = name.substr(0, colon);
  Device device;
  if (kind == "cuda") device.type = DeviceType::cuda;
  bool valid = kind == "cpu" || kind == "cuda";
  if (colon != std::string_view::npos) {
    std::string_view digits = name.substr(colon + 1);
    auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), device.index);
    valid = valid && error == std::errc() && end == digits.data() + digits.size() && device.index >= 0;
  }
  if (!valid) throw_error<ConfigError>("[place] '{}' is not a device; write cpu, cpu:N, cuda or cuda:N", name);
  require_device(device);
  return device;
}

Device default_device() {
  return count_of(DeviceType::cuda) > 0 ? Device{DeviceType::cuda, 0} : Device{DeviceType::cpu, 0};
}

std::vector<Device> devices() {
  std::vector<Device> all{{DeviceType::cpu, 0}};
  for (int i = 0; i < count_of(DeviceType::cuda); ++i) all.push_back({DeviceType::cuda, static_cast<int16_t>(i)});
  return all;
}

void require_device(Device device) {
  if (device.index < count_of(device.type)) return;
  std::string there;
  for (Device one : devices()) there += (there.empty() ? "" : ", ") + to_string(one);
  const char* hint = device.type == DeviceType::cuda && backend_of(DeviceType::cuda).count == nullptr
                         ? " (this build has no CUDA support)"
                         : "";
  throw_error<DeviceError>("[place] {} is not there{}; devices here: {}", to_string(device), hint, there);
}

DeviceMemory& memory_of(Device device) {
  require_device(device);
  return backend_of(device.type).memory(device.index);
}

void register_device_backend(DeviceType type, DeviceBackend backend) { backend_of(type) = backend; }

}  // namespace bonfire
