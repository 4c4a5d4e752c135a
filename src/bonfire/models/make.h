#pragma once
// Models by name, as configuration files and command lines give them.
//
//   models::Model model = models::make("resnet18", {.classes = 10, .in_channels = 1});
//   Tensor logits = model(image);

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bonfire/nn/module.h"

namespace bonfire::models {

// What is not given is the model's own default; what a model does not have is passed over.
struct ModelOptions {
  std::optional<int64_t> classes = {};
  std::optional<int64_t> in_channels = {};
  std::optional<int64_t> vocabulary = {};
  std::optional<double> dropout = {};
};

// Any model: one tensor in, one or more out.
class Model : public nn::Callable<Model> {
 public:
  using Function = std::function<std::vector<Tensor>(const Tensor&)>;
  Model(nn::Module module, Function function);

  Tensor forward(const Tensor& input) const { return outputs(input)[0]; }  // the logits
  std::vector<Tensor> outputs(const Tensor& input) const;                  // logits first; the two-headed net: boxes

 private:
  Function function_;
};

Model make(std::string_view name, const ModelOptions& options = {});  // ConfigError with the nearest name otherwise
std::vector<std::string> names();                                     // that make() knows

}  // namespace bonfire::models
