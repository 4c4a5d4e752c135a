#pragma once
// Module: a part of a model, with a name for everything it holds: parameters, buffers (variables that are not trained)
// and modules inside it. A module is a handle: copies share what they hold.
//
//   class Net : public nn::Callable<Net> {
//    public:
//     Net() : Callable("Net") {}
//     Tensor forward(const Tensor& x) const { return fc_(flatten(relu(conv_(x)), 1)); }
//
//    private:
//     nn::Conv2d conv_ = register_module("conv", nn::Conv2d({.in = 1, .out = 20, .kernel = {5}}));
//     nn::Linear fc_ = register_module("fc", nn::Linear({.in = 20 * 24 * 24, .out = 10}));
//   };
//
//   Net net;
//   Tensor logits = net(image);
//   net.save("net.safetensors");  // conv.weight, conv.bias, fc.weight, fc.bias

#include <filesystem>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bonfire/graph/trace.h"
#include "bonfire/graph/variable.h"
#include "bonfire/nn/split.h"
#include "bonfire/nn/state_dict.h"

namespace bonfire::nn {

class Module {
 public:
  const std::string& name() const { return name_; }  // within the module that holds this handle; "" for a whole model
  std::vector<std::pair<std::string, Module>> named_children() const;

  // Names are paths, as in PyTorch: "layer2.0.conv1.weight". Own ones come first, then those of the modules inside, in
  // the order in which they were registered. A tied parameter is listed once, under its first name.
  std::vector<Parameter> parameters() const;
  std::vector<std::pair<std::string, Parameter>> named_parameters() const;
  StateDict named_buffers() const;
  StateDict state_dict() const;  // parameters and buffers; a tied one under each of its names

  // How ranks along a tensor axis may share out what it holds; empty: it has no plan for that.
  const std::vector<Split>& splits() const;

  // For this module and all inside it.
  void train(bool training = true) const;
  void eval() const { train(false); }
  bool training() const;
  void set_requires_grad(bool required) const;  // false: frozen

  // Moves it and all inside it: every variable, whose gradient is dropped, and what is computed with them. Tensors that
  // it is given are copied to its device, so parts of a model may be on several: see docs/model-parallel.md.
  //   net.submodule("features").to("cuda:0"); net.submodule("classifier").to("cuda:1");
  void to(Device device) const;
  template <class Name>
  requires std::is_convertible_v<const Name&, std::string_view>
  void to(const Name& device) const { to(parse_device(device)); }
  // Where it computes; empty: where its inputs are. So it is before to() was called, and inside what was moved where a
  // module holds no variables.
  std::optional<Device> device() const;
  Module submodule(const std::string& path) const;  // "layer2.0"; ConfigError, with what there is

  LoadReport load_state_dict(const StateDict& values, LoadOptions options = {}) const;
  void save(const std::filesystem::path& file) const;  // safetensors, atomically
  LoadReport load(const std::filesystem::path& file, LoadOptions options = {}) const;

  friend std::ostream& operator<<(std::ostream& out, const Module& module);  // PyTorch's tree

 protected:
  explicit Module(std::string kind);  // the name of its type: "Conv2d"

  // Each returns what it was given. ConfigError when the name is taken, empty or has a dot.
  Parameter register_parameter(const std::string& name, Parameter parameter);
  Variable register_buffer(const std::string& name, Variable buffer);
  template <class M>
  M register_module(const std::string& name, M module) {
    add_child(name, module);
    return renamed(std::move(module), name);
  }
  template <class M>
  static M renamed(M module, const std::string& name) {
    static_cast<Module&>(module).name_ = name;
    return module;
  }
  void set_splits(std::vector<Split> splits);
  void set_details(std::string details);  // what the tree prints after the type: "1, 20, kernel_size=(5, 5)"
  void show_equal_children_once();        // in the tree: "(0-3): 4 x Linear(…)"
  // ShapeError naming both where a list of `size` modules has none with that index.
  void require_index(size_t index, size_t size) const;

 private:
  struct State;
  void add_child(const std::string& name, const Module& module);
  void check_name(const std::string& name) const;

  std::shared_ptr<State> state_;
  std::string name_;
};

std::string to_string(const Module& module);

// PyTorch's form: "kind(details)", or a line each for the details and for every child: "(name): its tree".
using TreeChildren = std::vector<std::pair<std::string, std::string>>;  // names and trees
std::string tree_text(const std::string& kind, const std::string& details, const TreeChildren& children);

// Gives `Self`, which has a forward(...), the call operator. Ops inside are traced under the module's path, so that
// graphs and errors say "layer2.0.conv1".
template <class Self>
class Callable : public Module {
 public:
  template <class... Inputs>
  auto operator()(Inputs&&... inputs) const {
    PathScope scope(name());
    const std::optional<Device> device = this->device();
    if (!device) return static_cast<const Self&>(*this).forward(std::forward<Inputs>(inputs)...);
    return static_cast<const Self&>(*this).forward(brought(std::forward<Inputs>(inputs), *device)...);
  }

 protected:
  using Module::Module;
  explicit Callable(Module module) : Module(std::move(module)) {}

 private:
  static Tensor brought(const Tensor& input, Device device) {
    return input.defined() && input.device() != device ? input.to(device) : input;
  }
  template <class Other>
  requires(!std::is_same_v<std::decay_t<Other>, Tensor>) static Other&& brought(Other&& other, Device) {
    return std::forward<Other>(other);
  }
};

// Any module that makes a tensor of a tensor.
class AnyModule : public Callable<AnyModule> {
 public:
  template <class M>
  requires std::is_base_of_v<Module, M> && std::is_invocable_r_v<Tensor, const M&, const Tensor&> AnyModule(M module)
      : Callable(renamed<Module>(module, "")),
        forward_([module = renamed(module, "")](const Tensor& x) -> Tensor { return module(x); }) {}

  Tensor forward(const Tensor& x) const { return forward_(x); }

 private:
  std::function<Tensor(const Tensor&)> forward_;
};

}  // namespace bonfire::nn
