#pragma once
// Placement: the modules of one model on several devices of one process, without a change to the model.
//
//   place(model, {{"features", "cuda:0"}, {"classifier", "cuda:1"}});
//   place(model, {{"*", "cuda:0"}, {"encoder.layer.2*", "cuda:1"}});
//
// A name is the path of a module, and means all that is inside it; a `*` in it stands for any text, dots too. Of
// several that match, the longest counts. It is nn::Module::to() for each of them, so it comes before an optimizer is
// made; what crosses between devices is copied there, as docs/model-parallel.md says.

#include <map>
#include <set>
#include <string>

#include "bonfire/nn/module.h"

namespace bonfire {

using Placement = std::map<std::string, std::string>;  // module → device

// ConfigError for a name that matches no module, which lists those there are, and where two names of one length put a
// module on two devices; DeviceError for a device that is not there. Nothing is moved then.
void place(const nn::Module& model, const Placement& placement);

std::set<Device> devices_of(const nn::Module& model);  // of its parameters and buffers

std::string to_string(const Placement& placement);  // "features on cuda:0, classifier on cuda:1"

}  // namespace bonfire
