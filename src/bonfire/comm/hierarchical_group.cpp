#include "bonfire/comm/hierarchical_group.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "bonfire/comm/lost_peer.h"
#include "bonfire/comm/reduce.h"

namespace bonfire::comm {
namespace {

constexpr size_t kSmall = 64 << 10;  // bytes that one rank of a host carries across alone

bool same_everywhere(Group& world, int64_t number) {
  std::vector<int64_t> all(static_cast<size_t>(world.size()));
  world.all_gather({&number, 1, DType::i64}, {all.data(), all.size(), DType::i64});
  return std::all_of(all.begin(), all.end(), [&](int64_t other) { return other == all[0]; });
}

Values part_of(Values values, size_t begin, size_t count) {
  return {static_cast<std::byte*>(values.data) + begin * size_of(values.dtype), count, values.dtype};
}

struct Levels {
  std::shared_ptr<Group> world, host;
  std::shared_ptr<Group> across;  // ranks with the same place on their hosts
  bool even;                      // all hosts have as many ranks
};

class HierarchicalGroup final : public Group {
 public:
  explicit HierarchicalGroup(Levels levels) : Group(levels.world->progress()), levels_(std::move(levels)) {}

  int rank() const override { return levels_.world->rank(); }
  int size() const override { return levels_.world->size(); }

  void all_reduce(Values values, Reduce reduce) override {
    check_reduction("all_reduce", values.dtype, reduce);
    if (values.dtype == DType::bf16 || values.dtype == DType::f16) return levels_.world->all_reduce(values, reduce);
    guarded([&] {
      const auto ranks = static_cast<size_t>(levels_.host->size());
      const size_t share = levels_.even && values.bytes() > kSmall ? values.count / ranks : 0;
      if (share > 0) reduce_by_shares(part_of(values, 0, share * ranks), reduce);
      if (share * ranks < values.count || values.count == 0)
        reduce_by_leaders(part_of(values, share * ranks, values.count - share * ranks), reduce);
    });
  }

  void broadcast(Values values, int root) override { levels_.world->broadcast(values, root); }
  void all_gather(ConstValues mine, Values all) override { levels_.world->all_gather(mine, all); }
  void reduce_scatter(ConstValues all, Values mine, Reduce reduce) override {
    levels_.world->reduce_scatter(all, mine, reduce);
  }
  void all_to_all(ConstValues to, Values from) override { levels_.world->all_to_all(to, from); }
  void send(ConstValues values, int to) override { levels_.world->send(values, to); }
  void receive(Values values, int from) override { levels_.world->receive(values, from); }
  void barrier() override { levels_.world->barrier(); }

  GroupBuffer buffer(size_t bytes) override {
    return guarded([&] { return levels_.host->buffer(bytes); });
  }

  std::shared_ptr<Group> split(int colour) override {
    return guarded([&]() -> std::shared_ptr<Group> {
      if (!same_everywhere(*levels_.world, colour)) return levels_.world->split(colour);
      return std::make_shared<HierarchicalGroup>(
          Levels{levels_.world->split(0), levels_.host->split(0), levels_.across->split(0), levels_.even});
    });
  }

  std::shared_ptr<Group> for_messages() override { return levels_.world->for_messages(); }

  void abort(const std::string& reason) override {
    for (Group* group : {levels_.host.get(), levels_.across.get(), levels_.world.get()}) group->abort(reason);
  }

 private:
  // Peers wait at other levels than the one that fails.
  template <class Body>
  std::invoke_result_t<Body> guarded(const Body& body) {
    try {
      return body();
    } catch (...) {
      abort(reason_of(std::current_exception()));
      throw;
    }
  }

  void reduce_by_shares(Values values, Reduce reduce) {
    const size_t share = values.count / static_cast<size_t>(levels_.host->size());
    const Values mine = part_of(values, share * static_cast<size_t>(levels_.host->rank()), share);
    levels_.host->reduce_scatter(values, mine, partial(reduce));
    reduce_across(mine, reduce);
    levels_.host->all_gather(mine, values);
  }

  void reduce_by_leaders(Values values, Reduce reduce) {
    levels_.host->all_reduce(values, partial(reduce));
    if (levels_.host->rank() == 0) reduce_across(values, reduce);
    levels_.host->broadcast(values, 0);
  }

  void reduce_across(Values values, Reduce reduce) {
    levels_.across->all_reduce(values, partial(reduce));
    void* data = values.data;
    if (reduce == Reduce::mean) reduce_values({{data}}, {&data, 1}, values.count, values.dtype, {reduce, size()});
  }

  static Reduce partial(Reduce reduce) { return reduce == Reduce::mean ? Reduce::sum : reduce; }

  Levels levels_;
};

}  // namespace

std::shared_ptr<Group> hierarchical_group(std::shared_ptr<Group> world, std::shared_ptr<Group> host) {
  const bool even = same_everywhere(*world, host->size());
  std::shared_ptr<Group> across = world->split(host->rank());
  return std::make_shared<HierarchicalGroup>(Levels{std::move(world), std::move(host), std::move(across), even});
}

}  // namespace bonfire::comm
