#include "bonfire/backend/cuda/nvrtc.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <unordered_map>

#include "bonfire/backend/cuda/runtime.h"
#include "bonfire/base/error.h"
#include "bonfire/base/hash.h"

namespace bonfire::cuda {

namespace {

void destroy_program(nvrtcProgram program) { nvrtcDestroyProgram(&program); }
using CompilerProgram = Handle<nvrtcProgram, destroy_program>;

std::filesystem::path cache_folder() {
  if (const char* folder = std::getenv("XDG_CACHE_HOME"); folder != nullptr && *folder != 0)
    return std::filesystem::path(folder) / "bonfire";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != 0)
    return std::filesystem::path(home) / ".cache" / "bonfire";
  return {};
}

base::Hash128 key_of(const std::string& source, int architecture) {
  int major = 0, minor = 0;
  check(nvrtcVersion(&major, &minor), "nvrtcVersion");
  base::Hash128 key;
  key.mix(source);
  for (int number : {architecture, major, minor}) key.mix(static_cast<uint64_t>(number));
  return key;
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return file ? text.str() : std::string();
}

// Under a name of its own first, so that another process never reads half a file. The cache is only a saving: a folder
// that cannot be written is no error.
void write_file(const std::filesystem::path& path, const std::string& content) {
  std::error_code ignored;
  std::filesystem::create_directories(path.parent_path(), ignored);
  std::filesystem::path temporary = path;
  temporary += fmt::format(".{}", getpid());
  std::ofstream file(temporary, std::ios::binary);
  file << content;
  file.close();
  if (file) std::filesystem::rename(temporary, path, ignored);
}

std::string cached_cubin(const std::string& source, int architecture, const base::Hash128& key) {
  std::filesystem::path folder = cache_folder();
  std::filesystem::path path = folder / fmt::format("{:016x}{:016x}.cubin", key.high, key.low);
  std::string cubin = folder.empty() ? std::string() : read_file(path);
  if (!cubin.empty()) return cubin;
  cubin = compile_to_cubin(source, architecture);
  if (!folder.empty()) write_file(path, cubin);
  return cubin;
}

}  // namespace

void check(nvrtcResult status, const char* call) {
  if (status != NVRTC_SUCCESS) throw_error<DeviceError>("[nvrtc] {} failed: {}", call, nvrtcGetErrorString(status));
}

std::string compile_to_cubin(const std::string& source, int architecture) {
  nvrtcProgram raw = nullptr;
  check(nvrtcCreateProgram(&raw, source.c_str(), "generated.cu", 0, nullptr, nullptr), "nvrtcCreateProgram");
  CompilerProgram program(raw);
  std::string target = fmt::format("--gpu-architecture=sm_{}", architecture);
  const char* options[] = {target.c_str(), "--std=c++17"};
  nvrtcResult compiled = nvrtcCompileProgram(raw, 2, options);
  if (compiled != NVRTC_SUCCESS) {
    size_t size = 0;
    check(nvrtcGetProgramLogSize(raw, &size), "nvrtcGetProgramLogSize");
    std::string log(size, '\0');
    check(nvrtcGetProgramLog(raw, log.data()), "nvrtcGetProgramLog");
    BONFIRE_CHECK(compiled == NVRTC_SUCCESS, "{}: {}\n{}", nvrtcGetErrorString(compiled), log, source);
  }
  size_t size = 0;
  check(nvrtcGetCUBINSize(raw, &size), "nvrtcGetCUBINSize");
  std::string cubin(size, '\0');
  check(nvrtcGetCUBIN(raw, cubin.data()), "nvrtcGetCUBIN");
  return cubin;
}

cudaKernel_t compile_kernel(const std::string& source, const char* name) {
  static std::mutex mutex;
  static std::unordered_map<base::Hash128, cudaKernel_t> kernels;
  int architecture = current_traits().architecture;
  base::Hash128 key = key_of(source, architecture);
  std::lock_guard lock(mutex);
  if (auto found = kernels.find(key); found != kernels.end()) return found->second;
  std::string cubin = cached_cubin(source, architecture, key);
  cudaLibrary_t library = nullptr;
  check(cudaLibraryLoadData(&library, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "cudaLibraryLoadData");
  cudaKernel_t kernel = nullptr;
  check(cudaLibraryGetKernel(&kernel, library, name), "cudaLibraryGetKernel");
  kernels.emplace(key, kernel);
  return kernel;
}

}  // namespace bonfire::cuda
