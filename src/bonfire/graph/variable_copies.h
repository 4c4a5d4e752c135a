#pragma once
// Copies of variables on another device, for a thread that runs there with the same model object as other threads.
//
//   VariableCopies copies;                                   // of a model's variables, on cpu:1
//   for (const auto& [name, variable] : model.state_dict()) copies.add(variable, parse_device("cpu:1"));
//   UseCopies scope(copies);
//   model(x);                                                // in this thread: computed with the copies
//
// While a UseCopies lives in a thread, reading, assigning, loading and saving a variable and its gradient mean its copy
// there. What only names the variable (spec, device, requires_grad) does not: ask the copy.

#include <unordered_map>

#include "bonfire/graph/variable.h"

namespace bonfire {

class VariableCopies {
 public:
  void add(const Variable& original,
           Device device);  // zeros; named and trained as the original. A second time: nothing
  const Variable* find(const Variable& variable) const;  // nullptr: it has none
  bool are_elsewhere() const { return elsewhere_; }      // one of them is on another device than its original

 private:
  std::unordered_map<const VariableState*, Variable> copies_;  // by the original
  bool elsewhere_ = false;
};

class UseCopies {
 public:
  explicit UseCopies(const VariableCopies& copies);
  ~UseCopies();
  UseCopies(const UseCopies&) = delete;
  UseCopies& operator=(const UseCopies&) = delete;

 private:
  const VariableCopies* before_;
};

// What `variable` means in this thread: its copy, or itself.
Variable here(const Variable& variable);
bool copies_are_elsewhere();  // those that this thread uses; false where it uses none

}  // namespace bonfire
