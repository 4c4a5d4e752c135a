#pragma once
// State dicts: what a module holds, by name and in order, and how it goes to files and comes back.
//
//   nn::save_state_dict(model.state_dict(), "best.safetensors");
//   nn::LoadReport report = nn::load_state_dict(model.state_dict(), file, {.strict = false});

#include <filesystem>
#include <functional>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bonfire/graph/variable.h"
#include "bonfire/nn/safetensors.h"

namespace bonfire::nn {

class TensorFiles;  // nn/tensor_files.h

struct NamedVariable {
  std::string name;  // "layer2.0.conv1.weight"
  Variable variable;
};
// Live variables, not copies of their values. A tied parameter stands under each of its names.
using StateDict = std::vector<NamedVariable>;

struct LoadOptions {
  bool strict = true;  // false: load what fits, leave the rest as it is and say so in the report
  // Empty: all. Those of other variables are looked for, and left as they are: of a model of which a rank has a part.
  std::function<bool(const Variable&)> only = {};
};

struct LoadReport {
  size_t loaded = 0;                    // names whose values were taken over
  std::vector<std::string> missing;     // in the model, not in what was loaded
  std::vector<std::string> unexpected;  // in what was loaded, not in the model
  std::vector<std::string> misshapen;   // "fc.weight is f32 [10, 512], found f32 [1000, 512]"

  bool complete() const { return missing.empty() && unexpected.empty() && misshapen.empty(); }
};
std::string to_string(const LoadReport& report);  // in words, one line a kind; long lists are cut
std::ostream& operator<<(std::ostream& out, const LoadReport& report);

// Gives the target's variables the entries' values, of which several may be slices of one tensor: each variable takes
// what it holds of it. Floating types are converted to the variable's. A tied variable is
// not missing as long as one of its names is there; names that all begin with "module." are taken without it. Nothing
// is changed when it throws: a DataError that names `source` and everything that does not fit, when strict.
LoadReport load_state_dict(const StateDict& target, std::span<const TensorEntry> entries, const std::string& source,
                           LoadOptions options = {});
LoadReport load_state_dict(const StateDict& target, const TensorFiles& files, LoadOptions options = {});
LoadReport load_state_dict(const StateDict& target, const std::filesystem::path& file, LoadOptions options = {});
LoadReport load_state_dict(const StateDict& target, const StateDict& values, LoadOptions options = {});

// The values of a state dict as they were when they were taken, in host memory: another thread may write them while
// training goes on. Taking again uses the same memory.
class StateCopy {
 public:
  StateCopy() = default;
  explicit StateCopy(const StateDict& state) { take(state); }
  StateCopy(StateCopy&&) = default;
  StateCopy& operator=(StateCopy&&) = default;

  // Memory for values of so many bytes, touched, so that the first take() need not wait for it.
  void reserve(size_t bytes);

  void take(const StateDict& state);  // waits for submissions that are in flight; a tied variable is copied once
  // Row-major, of slices what is here; what lies otherwise is put in order by the first call. Valid until the next
  // take().
  std::span<const TensorEntry> entries();

 private:
  std::unique_ptr<std::byte[]> bytes_;  // [capacity_]: all of them, each as it lies on its device
  size_t capacity_ = 0;
  std::vector<TensorEntry> entries_;
  std::vector<Layout> layouts_;  // of each entry
  std::vector<std::vector<std::byte>> reordered_;
  bool in_order_ = true;
};

size_t bytes_of(const StateDict& state);  // of what is here of all values; a tied variable counts once

// As safetensors, atomically: either the whole new file is there, or what was there before. GraphError for slices,
// which fleet::gather() puts together.
void save_state_dict(const StateDict& state, const std::filesystem::path& file,
                     const SafetensorsMetadata& metadata = {});

}  // namespace bonfire::nn
