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
  std::optional<int64_t> layers = {}, heads = {}, width = {}, context = {};  // of gpt2: models/gpt2.h
};

// A module that makes a tensor, or several, of a tensor.
template <class M>
concept MakesTensors = std::is_base_of_v<nn::Module, M> &&
    (std::is_invocable_r_v<Tensor, const M&, const Tensor&> ||
     std::is_invocable_r_v<std::vector<Tensor>, const M&, const Tensor&>);

// Any model: one tensor in, one or more out.
class Model : public nn::Callable<Model> {
 public:
  using Function = std::function<std::vector<Tensor>(const Tensor&)>;
  Model(nn::Module module, Function function);
  template <class M>
  requires(!std::is_same_v<M, Model> && MakesTensors<M>) Model(const M& module)
      : Model(module, [module](const Tensor& input) -> std::vector<Tensor> {
          if constexpr (std::is_invocable_r_v<Tensor, const M&, const Tensor&>)
            return {module(input)};
          else
            return module(input);
        }) {}

  Tensor forward(const Tensor& input) const { return outputs(input)[0]; }  // the logits
  std::vector<Tensor> outputs(const Tensor& input) const;                  // logits first; the two-headed net: boxes

 private:
  Function function_;
};

Model make(std::string_view name, const ModelOptions& options = {});  // ConfigError with the nearest name otherwise
std::vector<std::string> names();                                     // that make() knows
// What the model is trained for by `bonfire train`: one of the tasks in train/tasks/known_tasks.cpp.
std::string_view task_of(std::string_view name);  // ConfigError as make()'s

}  // namespace bonfire::models
