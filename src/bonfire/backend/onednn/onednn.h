#pragma once
// oneDNN as a source of further candidates (x86-64 only, where the build has found it). Private to this folder.
//
// Work is cut by us: each part (some images of a batch, some rows of a product) is a primitive for one thread that runs
// on a thread of the device's own pool. So oneDNN's OpenMP never starts a thread, nothing spins beside our workers, and
// the number of threads is the pool's.

#include <dnnl.hpp>
#include <string>
#include <vector>

#include "bonfire/base/thread_pool.h"
#include "bonfire/kernel/kernel.h"

namespace bonfire::onednn {

// Candidate::error of its f32 kernels: 3.7 at most by `bonfire bench exactness`, for convolutions that sum in another
// order than the plain one.
inline constexpr double kError = 5;

// While it lives, oneDNN called from this thread uses this thread alone.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

// Whether this machine and this oneDNN can be used as described above.
bool usable();

const dnnl::engine& engine();
dnnl::stream& stream();  // of the calling thread

bool has_type(DType dtype);  // f32 and bf16
dnnl::memory::data_type type_of(DType dtype);

dnnl::memory::dims dims_of(const Shape& shape);
dnnl::memory::desc desc_of(const Shape& shape, DType dtype, const Layout& layout);
dnnl::memory memory_at(const dnnl::memory::desc& desc, void* data);

// Attributes with the caller's scratchpad, and `activation` (an ElementwiseFunction, or -1) applied to the result.
dnnl::primitive_attr attributes(int64_t activation = -1);

// Reference implementations are far slower than anything of ours.
bool is_reference(const std::string& implementation);

// A range [begin, begin + count) of a loop that is cut into at most `parts` nearly equal ones.
struct Range {
  int64_t begin, count;
};
std::vector<Range> cut(int64_t count, int64_t parts);

inline size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Moves and converts weights from one form to another, on all threads where the forms can be cut along the first axis.
class WeightReorder {
 public:
  WeightReorder(const dnnl::memory::desc& from, const dnnl::memory::desc& to, int64_t parts);
  void run(void* source, void* target, ThreadPool& threads);

 private:
  struct Part {
    dnnl::reorder reorder;
    dnnl::memory source, target;
  };
  std::vector<Part> parts_;
};

}  // namespace bonfire::onednn
