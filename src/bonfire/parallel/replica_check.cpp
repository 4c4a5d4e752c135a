#include "bonfire/parallel/replica_check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "bonfire/backend/cpu/device/threads.h"
#include "bonfire/backend/cpu/simd/simd.h"
#include "bonfire/base/error.h"
#include "bonfire/base/hash.h"
#include "bonfire/graph/engine.h"
#include "bonfire/kernel/queue.h"
#include "bonfire/ops/bit_hash.h"
#include "bonfire/parallel/fleet.h"

namespace bonfire::fleet {

namespace {

// Ranks of one kind round alike.
int64_t kind_of(const Device& device) {
  base::Hash128 hash;
  hash.mix(device.type == DeviceType::cpu ? std::string(cpu::name_of(cpu::instruction_set()))
                                          : queue_of(device).model());
  hash.mix(static_cast<uint64_t>(device.type == DeviceType::cpu ? cpu::cpu_threads() : 0));
  return static_cast<int64_t>(hash.low);
}

std::vector<int64_t> gathered(std::span<const int64_t> own) {  // [place on the data axis, own.size()]
  std::vector<int64_t> all(own.size() * static_cast<size_t>(mesh().size(Axis::data)));
  group(Axis::data).all_gather({own.data(), own.size(), DType::i64}, {all.data(), all.size(), DType::i64});
  return all;
}

int64_t hash_of(std::span<const int64_t> numbers) {
  base::Hash128 hash;
  for (int64_t number : numbers) hash.mix(static_cast<uint64_t>(number));
  return static_cast<int64_t>(hash.low);
}

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

}  // namespace

nn::StateDict replicated(const nn::Module& model, const optim::Optimizer& optimizer) {
  std::set<const VariableState*> parameters;
  for (const Parameter& parameter : model.parameters()) parameters.insert(&parameter.state());
  nn::StateDict values;
  for (const nn::NamedVariable& named : model.state_dict())
    if (parameters.erase(&named.variable.state()) > 0) values.push_back(named);  // a tied one once
  for (const auto& [name, variable] : optimizer.state()) values.push_back({"optimizer's " + name, variable});
  // What ranks share out, each has a part of.
  std::erase_if(values, [](const nn::NamedVariable& one) { return one.variable.slice().is_range(); });
  return values;
}

ReplicaCheck::ReplicaCheck(nn::StateDict values)
    : values_(std::move(values)), hash_([this](std::span<const Tensor>) {
        NoGrad no_grad;
        std::vector<Tensor> hashes;
        for (const auto& [device, places] : places_) {
          std::vector<Tensor> tensors;
          for (size_t place : places) tensors.push_back(values_[place].variable.stored());
          hashes.push_back(bit_hash(tensors));
        }
        return hashes;
      }) {
  std::map<std::string, std::vector<size_t>> by_device;
  for (size_t i = 0; i < values_.size(); ++i) by_device[to_string(values_[i].variable.spec().device)].push_back(i);
  for (auto& [name, places] : by_device) {
    const Device device = values_[places[0]].variable.spec().device;
    places_.emplace_back(device, std::move(places));
  }
}

void ReplicaCheck::start() {
  if (mesh().size(Axis::data) == 1 || values_.empty()) return;
  const uint64_t step = StepContext::current().random.step;
  hashes_ = hash_.run({});
  StepContext::current().random.step = step;
}

std::vector<int64_t> ReplicaCheck::read() {
  std::vector<int64_t> all(values_.size());
  for (size_t i = 0; i < places_.size(); ++i) {
    const std::vector<int64_t> some = hashes_[i].to_vector<int64_t>();
    for (size_t j = 0; j < some.size(); ++j) all[places_[i].second[j]] = some[j];
  }
  hashes_.clear();
  return all;
}

void ReplicaCheck::finish(int64_t step) {
  if (!started()) return;
  const std::vector<int64_t> own = read();
  const int64_t mine[] = {kind_of(places_[0].first), hash_of(own)};
  const std::vector<int64_t> all = gathered(mine);  // [rank, 2]
  std::map<int64_t, std::set<int64_t>> found;       // by kind
  std::vector<int64_t> kinds;
  for (size_t rank = 0; 2 * rank < all.size(); ++rank) {
    kinds.push_back(all[2 * rank]);
    found[all[2 * rank]].insert(all[2 * rank + 1]);
  }
  if (std::ranges::all_of(found, [](const auto& kind) { return kind.second.size() == 1; })) return;

  const std::vector<int64_t> every = gathered(own);
  std::vector<std::vector<int64_t>> hashes;
  for (size_t rank = 0; rank < kinds.size(); ++rank)
    hashes.emplace_back(every.begin() + static_cast<std::ptrdiff_t>(rank * own.size()),
                        every.begin() + static_cast<std::ptrdiff_t>((rank + 1) * own.size()));
  std::vector<std::string> names;
  for (const nn::NamedVariable& value : values_) names.push_back(value.name);
  std::vector<int> at_fault;
  const std::string text = fmt::format(
      "[replicas] after step {} {}. A bit of a memory has flipped, or a kernel has gone wrong: nothing of it was "
      "saved; "
      "resume goes on from the last checkpoint, and so does the job by itself with --max_restarts",
      step, difference_between(names, kinds, hashes, mesh().ranks_along(Axis::data), &at_fault));
  const bool innocent = !at_fault.empty() && std::ranges::find(at_fault, rank()) == at_fault.end();
  if (innocent) throw_error<CommError>("{}", text);
  throw_error<DeviceError>("{}", text);
}

std::string difference_between(std::span<const std::string> names, std::span<const int64_t> kinds,
                               std::span<const std::vector<int64_t>> hashes, std::span<const int> numbers,
                               std::vector<int>* at_fault) {
  std::map<int64_t, std::vector<size_t>> alike;  // places of each kind
  for (size_t place = 0; place < kinds.size(); ++place) alike[kinds[place]].push_back(place);
  for (size_t value = 0; value < names.size(); ++value)
    for (const auto& [kind, places] : alike) {
      std::map<int64_t, std::vector<int>> by_hash;  // ranks
      for (size_t place : places) by_hash[hashes[place][value]].push_back(numbers[place]);
      if (by_hash.size() == 1) continue;
      auto most = std::ranges::max_element(by_hash, {}, [](const auto& one) { return one.second.size(); });
      std::vector<int> others;
      for (size_t place : places)
        if (std::ranges::find(most->second, numbers[place]) == most->second.end()) others.push_back(numbers[place]);
      const bool majority = 2 * most->second.size() > places.size();
      if (majority && at_fault != nullptr) *at_fault = others;
      return fmt::format("{} {} {} in {}", ranks_text(others), majority ? "differs from" : "and",
                         majority ? ranks_text(most->second) : ranks_text(most->second) + " differ", names[value]);
    }
  return {};
}

}  // namespace bonfire::fleet
