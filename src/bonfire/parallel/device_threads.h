#pragma once
// DeviceThreads: a thread for each device, in which the program goes on as if it were alone there.
//
//   DeviceThreads threads({parse_device("cpu:0"), parse_device("cpu:1")});
//   threads.copy_variables_of(model);
//   threads.run([&](size_t place) { ... });  // on both at once: there the model's variables are the device's copies
//
// Each thread is a rank of one group (fleet::rank()). A task that fails on one device fails on all, since the others
// may be waiting for it, and so do later ones.

#include <functional>
#include <memory>
#include <vector>

#include "bonfire/nn/module.h"

namespace bonfire::detail {

class DeviceThreads {
 public:
  // ConfigError without devices, for one that is named twice, and in a process that is one of several ranks itself.
  explicit DeviceThreads(const std::vector<Device>& devices);
  ~DeviceThreads();

  const std::vector<Device>& devices() const;

  // Moves the model to the first device, and makes copies of its variables on the others, of which each thread uses its
  // own from then on. Only their values differ from the first one's, until they are given those.
  void copy_variables_of(const nn::Module& model);
  // Calls body(place of the device) in this thread for one after the other, with that device's copies.
  void for_each_copy(const std::function<void(size_t)>& body) const;
  // Calls body(place of the device) on all threads, and waits. Throws what the thread at fault has thrown.
  void run(const std::function<void(size_t)>& body);

  // In each thread: how much its loss counts in the mean over all devices. Compiled steps read it at each submission.
  void weigh_loss(size_t place, double weight);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bonfire::detail
