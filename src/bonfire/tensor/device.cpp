#include "bonfire/tensor/device.h"

#include <dlfcn.h>

#include <charconv>
#include <filesystem>

#include "bonfire/base/error.h"

namespace bonfire {

namespace {

DeviceBackend& backend_of(DeviceType type) {
  static DeviceBackend backends[kDeviceTypes] = {};
  return backends[static_cast<int>(type)];
}

// The CUDA backend is a library of its own beside this one, loaded when a GPU is first asked about: the libraries it
// needs take 0.1 to 0.9 s to load, which programs that stay on the CPU must not pay. Its constructors register it.
// Returns why it was not loaded, in words; empty when it was.
std::string load_cuda_backend() {
  Dl_info here;
  if (dladdr(reinterpret_cast<void*>(&load_cuda_backend), &here) == 0) return "the library cannot find its own folder";
  std::filesystem::path file = std::filesystem::path(here.dli_fname).parent_path() / "libbonfire_cuda.so";
  if (std::error_code error; !std::filesystem::exists(file, error)) return "this build has no CUDA support";
  if (dlopen("libcuda.so.1", RTLD_LAZY) == nullptr) return "no NVIDIA driver is installed";
  return dlopen(file.c_str(), RTLD_NOW) == nullptr ? dlerror() : "";
}

const std::string& cuda_backend_problem() {
  static const std::string problem = load_cuda_backend();
  return problem;
}

int count_of(DeviceType type) {
  if (type == DeviceType::cuda && !cuda_backend_problem().empty()) return 0;
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
  std::string hint = device.type == DeviceType::cuda ? cuda_backend_problem() : "";
  if (!hint.empty()) hint = " (" + hint + ")";
  throw_error<DeviceError>("[place] {} is not there{}; devices here: {}", to_string(device), hint, there);
}

DeviceMemory& memory_of(Device device) {
  require_device(device);
  return backend_of(device.type).memory(device.index);
}

void register_device_backend(DeviceType type, DeviceBackend backend) { backend_of(type) = backend; }

}  // namespace bonfire
