// Memory mapping is in the driver's interface alone. Its functions are asked for by name at run time, so that nothing
// links the driver's library, which machines without a GPU do not have.
#include <cuda.h>
#include <cudaTypedefs.h>

#include "bonfire/backend/cuda/memory.h"
#include "bonfire/base/error.h"

namespace bonfire::cuda {

namespace {

template <class Function>
Function driver_function(const char* name, unsigned int version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found), name);
  if (found != cudaDriverEntryPointSuccess)
    throw_error<DeviceError>("[cuda] the driver has no {}; it must support CUDA 10.2 or newer", name);
  return reinterpret_cast<Function>(function);
}

struct Driver {
  PFN_cuMemGetAllocationGranularity_v10020 granularity =
      driver_function<decltype(granularity)>("cuMemGetAllocationGranularity", 10020);
  PFN_cuMemAddressReserve_v10020 reserve = driver_function<decltype(reserve)>("cuMemAddressReserve", 10020);
  PFN_cuMemAddressFree_v10020 unreserve = driver_function<decltype(unreserve)>("cuMemAddressFree", 10020);
  PFN_cuMemCreate_v10020 create = driver_function<decltype(create)>("cuMemCreate", 10020);
  PFN_cuMemRelease_v10020 release = driver_function<decltype(release)>("cuMemRelease", 10020);
  PFN_cuMemMap_v10020 map = driver_function<decltype(map)>("cuMemMap", 10020);
  PFN_cuMemUnmap_v10020 unmap = driver_function<decltype(unmap)>("cuMemUnmap", 10020);
  PFN_cuMemSetAccess_v10020 set_access = driver_function<decltype(set_access)>("cuMemSetAccess", 10020);
  PFN_cuGetErrorString_v6000 error_text = driver_function<decltype(error_text)>("cuGetErrorString", 6000);
};

const Driver& driver() {
  static const Driver functions;
  return functions;
}

void check(CUresult status, const char* call) {
  if (status == CUDA_SUCCESS) return;
  const char* text = nullptr;
  driver().error_text(status, &text);
  throw_error<DeviceError>("[cuda] {} failed: {}", call, text == nullptr ? "unknown error" : text);
}

CUmemAllocationProp on_device(int index) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = index};
  return properties;
}

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

void Arena::reserve() {
  CUmemAllocationProp properties = on_device(index_);
  check(driver().granularity(&granularity_, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
        "cuMemGetAllocationGranularity");
  reserved_ = round_up(traits_of(index_).memory_bytes, granularity_);
  CUdeviceptr base = 0;
  check(driver().reserve(&base, reserved_, granularity_, 0, 0), "cuMemAddressReserve");
  base_ = base;
}

void* Arena::require(size_t bytes) {
  DeviceScope device(index_);
  if (base_ == 0) reserve();
  if (bytes > mapped_) {
    if (bytes > reserved_)
      throw_error<DeviceError>(
          "[cuda:{}] a plan needs {} bytes for temporaries, the device has {}; use a smaller batch", index_, bytes,
          reserved_);
    size_t size = round_up(bytes - mapped_, granularity_);
    CUmemAllocationProp properties = on_device(index_);
    CUmemGenericAllocationHandle block = 0;
    check(driver().create(&block, size, &properties, 0), "cuMemCreate");
    CUresult mapped = driver().map(base_ + mapped_, size, 0, block, 0);
    driver().release(block);  // the mapping keeps it
    check(mapped, "cuMemMap");
    CUmemAccessDesc access{.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    check(driver().set_access(base_ + mapped_, size, &access, 1), "cuMemSetAccess");
    mapped_ += size;
  }
  return reinterpret_cast<void*>(base_);
}

Arena::~Arena() {
  if (base_ == 0) return;
  if (mapped_ > 0) driver().unmap(base_, mapped_);
  driver().unreserve(base_, reserved_);
}

}  // namespace bonfire::cuda
