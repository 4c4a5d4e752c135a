// Which ops have no CUDA kernel is known without a GPU, and without a build for one: from the sources.
#include "bonfire/kernel/without_cuda.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "bonfire/graph/all_ops.h"
#include "bonfire/kernel/kernel.h"
#include "tests/support/cuda_device.h"

namespace bonfire::without_cuda_test {
namespace {

namespace fs = std::filesystem;

// What sources register for CUDA.
struct CudaKernels {
  std::set<std::string, std::less<>> names;
  bool any_elementwise = false;
  std::string unread;  // calls that say neither, a line each

  bool serve(const Op& op) const { return names.contains(op.name) || (any_elementwise && op.has(Trait::elementwise)); }
};

std::string without_blanks(std::string_view text) {
  std::string rest;
  for (char c : text)
    if (c != ' ' && c != '\n') rest += c;
  return rest;
}

// Reads every register_kernel(NAME, DEVICE, ...) of a source. NAME is a literal or kAnyElementwise.
void read_registrations(const std::string& text, const std::string& file, CudaKernels& kernels) {
  const std::string call = "register_kernel(";
  for (size_t at = text.find(call); at != std::string::npos; at = text.find(call, at + 1)) {
    const size_t name_begin = at + call.size(), name_end = text.find(',', name_begin);
    const std::string name = without_blanks(std::string_view(text).substr(name_begin, name_end - name_begin));
    const size_t type_end = name_end == std::string::npos ? name_end : text.find_first_of(",)", name_end + 1);
    const std::string type = type_end == std::string::npos
                                 ? ""
                                 : without_blanks(std::string_view(text).substr(name_end + 1, type_end - name_end - 1));
    if (type == "DeviceType::cpu") continue;
    const bool is_literal = name.size() > 2 && name.front() == '"' && name.find('"', 1) == name.size() - 1;
    if (type == "DeviceType::cuda" && is_literal) {
      kernels.names.insert(name.substr(1, name.size() - 2));
    } else if (type == "DeviceType::cuda" && (name == "kAnyElementwise" || name == "std::string(kAnyElementwise)")) {
      kernels.any_elementwise = true;
    } else {
      kernels.unread += fmt::format(
          "{}: register_kernel({}, {}, ...): this test reads sources; write the op's name as a literal and the "
          "device's "
          "type as DeviceType::cuda or DeviceType::cpu\n",
          file, name, type);
    }
  }
}

CudaKernels registered_in_sources() {
  const fs::path root = fs::path(BONFIRE_SOURCE_DIR) / "src" / "bonfire";
  CudaKernels kernels;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const fs::path file = fs::relative(entry.path(), root);
    if ((file.extension() != ".cpp" && file.extension() != ".cu") || file == "kernel/kernel.cpp") continue;
    std::ifstream stream(entry.path());
    read_registrations({std::istreambuf_iterator<char>(stream), {}}, file.string(), kernels);
  }
  return kernels;
}

// Where the list and the kernels disagree, a line each. Views take no kernel, since their result lies where their input
// does, nor do placeholders, which never run.
std::string disagreements(std::span<const Op* const> ops, const CudaKernels& kernels,
                          std::span<const std::string_view> listed) {
  std::string faults = kernels.unread;
  std::set<std::string_view> missing(listed.begin(), listed.end()), known;
  for (const Op* op : ops) {
    known.insert(op->name);
    const bool on_gpu = op->has(Trait::view | Trait::placeholder) || kernels.serve(*op),
               is_listed = missing.contains(op->name);
    if (!on_gpu && !is_listed)
      faults += fmt::format(
          "{} has no CUDA kernel: write one in src/bonfire/backend/cuda/, or put its name into the list in "
          "src/bonfire/kernel/without_cuda.cpp\n",
          op->name);
    if (on_gpu && is_listed)
      faults += fmt::format(
          "{} has a CUDA kernel (or needs none): take it off the list in src/bonfire/kernel/without_cuda.cpp\n",
          op->name);
  }
  for (std::string_view name : listed)
    if (!known.contains(name))
      faults += fmt::format("there is no op {}: take it off the list in src/bonfire/kernel/without_cuda.cpp\n", name);
  return faults;
}

TEST(OpsWithoutCudaKernel, AreTheList) {
  const CudaKernels kernels = registered_in_sources();
  EXPECT_GT(kernels.names.size(), 60U);
  EXPECT_TRUE(kernels.any_elementwise);
  EXPECT_EQ(disagreements(all_ops(), kernels, ops_without_cuda_kernel()), "");
}

TEST(OpsWithoutCudaKernel, AreThoseThatAGpuHasNoneOf) {
  const std::optional<Device> device = cuda_device();
  if (!device) GTEST_SKIP() << "no GPU here";
  for (const Op* op : all_ops())
    EXPECT_TRUE(op->has(Trait::view | Trait::placeholder) ||
                has_kernel(*op, *device) != is_without_cuda_kernel(op->name))
        << op->name;
}

TEST(OpsWithoutCudaKernel, EveryOpHasAKernelOnTheCpu) {
  EXPECT_GT(all_ops().size(), 100U);
  for (const Op* op : all_ops())
    EXPECT_TRUE(op->has(Trait::view | Trait::placeholder) || has_kernel(*op, {})) << op->name;
}

TEST(OpsWithoutCudaKernel, AnOpInNeitherAndAnOpInBothAreFaults) {
  const Op plain{.name = "plain"}, chained{.name = "chained", .traits = Trait::elementwise},
      alias{.name = "alias", .traits = Trait::view};
  const Op* const ops[] = {&plain, &chained, &alias};
  CudaKernels kernels;
  read_registrations(R"(const bool registered = register_kernel("plain", DeviceType::cpu, a);)", "a.cpp", kernels);
  EXPECT_EQ(disagreements(ops, kernels, {}),
            "plain has no CUDA kernel: write one in src/bonfire/backend/cuda/, or put its name into the list in "
            "src/bonfire/kernel/without_cuda.cpp\n"
            "chained has no CUDA kernel: write one in src/bonfire/backend/cuda/, or put its name into the list in "
            "src/bonfire/kernel/without_cuda.cpp\n");
  const std::string_view both[] = {"chained", "plain"};
  EXPECT_EQ(disagreements(ops, kernels, both), "");
  read_registrations("register_kernel(std::string(kAnyElementwise), DeviceType::cuda, candidates);", "b.cpp", kernels);
  const std::string_view only_plain[] = {"plain"};
  EXPECT_EQ(disagreements(ops, kernels, only_plain), "");
  read_registrations("x && register_kernel(\n    \"plain\",\n    DeviceType::cuda, a);", "b.cu", kernels);
  EXPECT_EQ(disagreements(ops, kernels, {}), "");
  EXPECT_EQ(disagreements(ops, kernels, only_plain),
            "plain has a CUDA kernel (or needs none): take it off the list in src/bonfire/kernel/without_cuda.cpp\n");
}

TEST(OpsWithoutCudaKernel, ANameThatIsNotALiteralIsAFault) {
  CudaKernels kernels;
  read_registrations("for (const char* name : kNames) register_kernel(name, DeviceType::cuda, candidates);", "c.cu",
                     kernels);
  EXPECT_EQ(kernels.unread,
            "c.cu: register_kernel(name, DeviceType::cuda, ...): this test reads sources; write the op's name as a "
            "literal and the device's type as DeviceType::cuda or DeviceType::cpu\n");
  const std::string_view gone[] = {"gone"};
  EXPECT_EQ(disagreements({}, {}, gone),
            "there is no op gone: take it off the list in src/bonfire/kernel/without_cuda.cpp\n");
}

}  // namespace
}  // namespace bonfire::without_cuda_test
