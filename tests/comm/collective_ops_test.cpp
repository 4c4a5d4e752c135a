// Every collective op gives what it is defined to give: in every dtype and layout, along every dimension, for 1 to 7
// ranks, empty and odd counts too, whatever the ranks are connected by; and gradients are finite differences over all
// ranks.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "bonfire/base/error.h"
#include "bonfire/base/random.h"
#include "bonfire/bonfire.h"
#include "bonfire/comm/all_reduce.h"
#include "bonfire/comm/axis_groups.h"
#include "bonfire/comm/reduce.h"
#include "bonfire/runtime/plan_cache.h"
#include "bonfire/runtime/submit.h"
#include "tests/comm/collective_reference.h"
#include "tests/comm/ranks.h"
#include "tests/support/expect_error.h"

namespace bonfire::testing::collective_ops_test {
namespace {

using comm::Reduce;

constexpr Axis kAxis = Axis::tensor;
constexpr DType kDtypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16,
                             DType::i32, DType::i64, DType::u8,   DType::boolean};

struct Where {
  Backend backend;
  int size;
};
std::string where_name(const ::testing::TestParamInfo<Where>& info) {
  return name_of(info.param.backend) + std::to_string(info.param.size);
}
class CollectiveOps : public ::testing::TestWithParam<Where> {
  void SetUp() override {
    if (!is_here(GetParam().backend)) GTEST_SKIP() << "no " << name_of(GetParam().backend) << " here";
  }
};

// A rank of a job whose ranks all differ along one axis, with a device of its own where ranks are threads.
void as_ranks(const Where& where, const std::function<void(Rank& rank, Device device)>& body) {
  expect_all_fine(run_ranks(where.backend, where.size, [&](Rank& rank) {
    fleet::join(rank.group, {.tensor = rank.size()});
    body(rank, {DeviceType::cpu, static_cast<int16_t>(are_threads(where.backend) ? rank.rank() : 0)});
    fleet::leave();
  }));
}

void require_same(const std::string& what, const Tensor& found, const Array& expected) {
  const Array got = array_of(found);
  if (got == expected) return;
  require(got.shape == expected.shape,
          fmt::format("{}: shape {} instead of {}", what, to_string(got.shape), to_string(expected.shape)));
  for (size_t i = 0; i < got.values.size(); ++i)
    if (got.values[i] != expected.values[i])
      require(false, fmt::format("{}: element {} is {} instead of {}", what, i, got.values[i], expected.values[i]));
}

// What one row of the table is about: the operand's shape, dtype and order in memory.
struct Operand {
  Shape shape;
  DType dtype = DType::f32;
  Shape order = {};                    // slowest axis first; empty: row-major
  bool differs_between_ranks = false;  // rank 0's is row-major

  std::string text() const {
    return fmt::format("{} {} lying as {}{}", bonfire::name_of(dtype), to_string(shape), to_string(order),
                       differs_between_ranks ? " but on rank 0" : "");
  }
};

class Table {
 public:
  Table(Rank& rank, Device device) : rank_(rank), device_(device) {}

  void check(const Operand& operand) const {
    const int ranks = rank_.size();
    Arrays all;
    for (int r = 0; r < ranks; ++r) all.push_back(rounded(whole_numbers(operand.shape, r), operand.dtype));
    const auto me = static_cast<size_t>(rank_.rank());
    const bool plain = operand.differs_between_ranks && rank_.rank() == 0;
    auto mine = [&] { return lying_as(tensor_of(all[me], operand.dtype, device_), plain ? Shape{} : operand.order); };
    auto shared = [&](int dim) { return operand.shape[dim] % ranks == 0; };
    for (Reduce reduce : {Reduce::sum, Reduce::mean, Reduce::max}) {
      if (reduce == Reduce::mean && !is_floating(operand.dtype)) continue;
      const std::string of = fmt::format("{} of {}", comm::name_of(reduce), operand.text());
      require_same("all_reduce, " + of, comm::all_reduce(mine(), kAxis, reduce),
                   all_reduced(all, reduce, operand.dtype)[me]);
      for (int dim = 0; dim < operand.shape.rank(); ++dim)
        if (shared(dim))
          require_same(fmt::format("reduce_scatter {}, {}", dim, of), comm::reduce_scatter(mine(), kAxis, dim, reduce),
                       reduce_scattered(all, dim, reduce, operand.dtype)[me]);
    }
    for (int root : {0, ranks - 1})
      require_same(fmt::format("broadcast from {} of {}", root, operand.text()), comm::broadcast(mine(), kAxis, root),
                   all[static_cast<size_t>(root)]);
    for (int dim = 0; dim < operand.shape.rank(); ++dim) {
      require_same(fmt::format("all_gather {} of {}", dim, operand.text()), comm::all_gather(mine(), kAxis, dim),
                   all_gathered(all, dim)[me]);
      for (int join = 0; join < operand.shape.rank(); ++join)
        if (shared(dim))
          require_same(fmt::format("all_to_all {} {} of {}", dim, join, operand.text()),
                       comm::all_to_all(mine(), kAxis, dim, join), exchanged(all, dim, join)[me]);
    }
    if (ranks > 1) check_ring(operand, mine(), all);
  }

 private:
  // Everyone sends to the next one, and has asked for what comes from the one before.
  void check_ring(const Operand& operand, const Tensor& mine, const Arrays& all) const {
    const int ranks = rank_.size(), next = (rank_.rank() + 1) % ranks, before = (rank_.rank() + ranks - 1) % ranks;
    const Tensor received = comm::receive({operand.shape, operand.dtype, device_}, kAxis, before, {.tag = 5});
    comm::send(mine, kAxis, next, 5);
    require_same("a message of " + operand.text(), received, all[static_cast<size_t>(before)]);
  }

  Rank& rank_;
  Device device_;
};

TEST_P(CollectiveOps, GiveWhatTheyAreDefinedToGive) {
  as_ranks(GetParam(), [](Rank& rank, Device device) {
    const Table table(rank, device);
    const int64_t n = rank.size();
    for (DType dtype : kDtypes) table.check({.shape = {n * 3, 5}, .dtype = dtype});
    for (const Shape& shape : {Shape{1}, Shape{n}, Shape{7}, Shape{0}, Shape{0, 3}, Shape{n * 2, 0}, Shape{3, n, 1}})
      table.check({.shape = shape});
    table.check({.shape = {n * 1001, 37}});  // more than goes at a time
    const Shape image{2, n * 3, n, 5};
    for (const Shape& order : {Shape{0, 2, 3, 1}, Shape{3, 1, 0, 2}, Shape{1, 0, 2, 3}})
      for (bool differs : {false, true})
        table.check({.shape = image, .order = order, .differs_between_ranks = differs});
    table.check({.shape = image, .dtype = DType::bf16, .order = {0, 2, 3, 1}, .differs_between_ranks = true});
  });
}

// How a loss of one rank depends on its x, through collectives.
struct Differentiable {
  const char* name;
  std::function<Tensor(const Tensor& x)> call;
};

std::vector<Differentiable> differentiable(Rank& rank) {
  const int n = rank.size(), next = (rank.rank() + 1) % n, before = (rank.rank() + n - 1) % n;
  std::vector<Differentiable> list;
  for (Reduce reduce : {Reduce::sum, Reduce::mean, Reduce::max}) {
    list.push_back({"all_reduce", [=](const Tensor& x) { return comm::all_reduce(x, kAxis, reduce); }});
    list.push_back({"reduce_scatter", [=](const Tensor& x) { return comm::reduce_scatter(x, kAxis, 1, reduce); }});
  }
  for (int dim : {0, 1}) {
    list.push_back({"all_gather", [=](const Tensor& x) { return comm::all_gather(x, kAxis, dim); }});
    list.push_back({"all_to_all", [=](const Tensor& x) { return comm::all_to_all(x, kAxis, 1, dim); }});
  }
  for (int root : {0, n - 1})
    list.push_back({"broadcast", [=](const Tensor& x) { return comm::broadcast(x, kAxis, root); }});
  if (n > 1)
    list.push_back({"send and receive", [=](const Tensor& x) {
                      const Tensor from = comm::receive(x.spec(), kAxis, before, {.requires_grad = true});
                      return from + cast(comm::send(x, kAxis, next), x.dtype());
                    }});
  return list;
}

// The weighted sum of squares of what the call gives, with other weights on each rank.
Tensor loss_of(const Differentiable& one, const Tensor& x, int rank) {
  const Tensor y = one.call(x);
  std::vector<double> weights(static_cast<size_t>(y.shape().count()));
  for (size_t i = 0; i < weights.size(); ++i)
    weights[i] = 0.5 + uniform_at(11, static_cast<uint64_t>(rank), static_cast<uint64_t>(i));
  return sum(square(y) * Tensor::from<double>(weights, y.shape(), y.device()));
}

TEST_P(CollectiveOps, GradientsAreFiniteDifferencesOverAllRanks) {
  if (GetParam().size > 4) GTEST_SKIP() << "as with fewer";
  as_ranks(GetParam(), [](Rank& rank, Device device) {
    const Shape shape{2, rank.size()};
    const auto count = static_cast<size_t>(shape.count());
    std::vector<double> numbers(count);
    for (size_t i = 0; i < count; ++i)
      numbers[i] = uniform_at(7, static_cast<uint64_t>(rank.rank()), static_cast<uint64_t>(i)) - 0.5;
    for (const Differentiable& one : differentiable(rank)) {
      Tensor x = Tensor::from<double>(numbers, shape, device);
      x.set_requires_grad(true);
      loss_of(one, x, rank.rank()).backward();
      const std::vector<double> gradient = x.grad().to_vector<double>();
      for (int moved = 0; moved < rank.size(); ++moved)
        for (size_t i = 0; i < count; ++i) {
          constexpr double kStep = 1e-5;
          double difference = 0;
          for (double sign : {1.0, -1.0}) {
            std::vector<double> other = numbers;
            if (moved == rank.rank()) other[i] += sign * kStep;
            NoGrad no_grad;
            double loss = loss_of(one, Tensor::from<double>(other, shape, device), rank.rank()).item();
            rank.group->all_reduce({&loss, 1, DType::f64}, Reduce::sum);
            difference += sign * loss / (2 * kStep);
          }
          if (moved == rank.rank())
            require(std::abs(gradient[i] - difference) < 1e-6 * (1 + std::abs(difference)),
                    fmt::format("{}: gradient {} of element {}, finite difference {}", one.name, gradient[i], i,
                                difference));
        }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Threads, CollectiveOps,
                         ::testing::Values(Where{Backend::local, 1}, Where{Backend::local, 2}, Where{Backend::local, 3},
                                           Where{Backend::local, 5}, Where{Backend::staged, 2},
                                           Where{Backend::local, 7}),
                         where_name);
INSTANTIATE_TEST_SUITE_P(Processes, CollectiveOps,
                         ::testing::Values(Where{Backend::shm, 2}, Where{Backend::shm, 3}, Where{Backend::shm, 4},
                                           Where{Backend::shm, 6}, Where{Backend::gloo, 2}, Where{Backend::gloo, 5},
                                           Where{Backend::mpi, 2}, Where{Backend::mpi, 3}),
                         where_name);

// Of two ranks that are threads.
void on_two(const std::function<void(Rank& rank, Device device)>& body) { as_ranks({Backend::local, 2}, body); }

size_t nodes_named(const runtime::Plan& plan, std::string_view name) {
  return static_cast<size_t>(std::count_if(plan.graph->nodes().begin(), plan.graph->nodes().end(),
                                           [&](const GraphNode& node) { return node.name() == name; }));
}

// The plan that was submitted last on the device.
std::shared_ptr<runtime::Plan> plan_on(Device device) {
  for (const auto& plan : runtime::cached_plans())
    if (!plan->programs.empty() && plan->programs[0].program->device == device) return plan;
  throw std::runtime_error("no plan");
}

TEST(CollectiveLayouts, OperandsAreTakenAsTheyLie) {
  on_two([](Rank& rank, Device device) {
    auto x = [&] {
      return lying_as(tensor_of(whole_numbers({2, 4, 2, 3}, rank.rank()), DType::f32, device), {0, 2, 3, 1});
    };
    const std::function<Tensor()> calls[] = {
        [&] { return comm::all_reduce(x(), kAxis); }, [&] { return comm::all_gather(x(), kAxis, 1); },
        [&] { return comm::reduce_scatter(x(), kAxis, 2); }, [&] { return comm::broadcast(x(), kAxis); },
        [&] { return comm::all_to_all(x(), kAxis, 1, 2); }};
    for (const auto& call : calls) {
      call().to_vector<float>();
      require(nodes_named(*plan_on(device), "reorder") == 1, runtime::print_plan(*plan_on(device)));  // of the result
    }
    comm::send(lying_as(tensor_of(whole_numbers({4, 2, 3}, rank.rank()), DType::f32, device), {1, 2, 0}), kAxis,
               1 - rank.rank());
    comm::receive({{4, 2, 3}, DType::f32, device}, kAxis, 1 - rank.rank()).to_vector<float>();
    require(nodes_named(*plan_on(device), "reorder") == 0, runtime::print_plan(*plan_on(device)));
  });
}

TEST(CollectivePrecision, ActivationsTravelInBf16AndGradientsStayFull) {
  on_two([](Rank& rank, Device device) {
    use_mixed_precision(true);
    static_cast<comm::AxisGroups&>(*StepContext::current().groups).names()->add("gradient");
    const Tensor x = tensor_of(whole_numbers({2, 4}, rank.rank()), DType::f32, device);
    const std::pair<const char*, std::function<Tensor(const Tensor&)>> calls[] = {
        {"all_reduce", [](const Tensor& y) { return comm::all_reduce(y, kAxis); }},
        {"all_gather", [](const Tensor& y) { return comm::all_gather(y, kAxis); }},
        {"reduce_scatter", [](const Tensor& y) { return comm::reduce_scatter(y, kAxis); }},
        {"broadcast", [](const Tensor& y) { return comm::broadcast(y, kAxis); }},
        {"all_to_all", [](const Tensor& y) { return comm::all_to_all(y, kAxis); }}};
    for (const auto& [name, call] : calls) {
      const Tensor y = matmul(x, full({4, 4}, 0.25, DType::f32, device));
      matmul(call(y), full({4, 4}, 1, DType::f32, device)).to_vector<float>();
      for (const GraphNode& node : plan_on(device)->graph->nodes())
        if (node.name() == name)
          require(node.outputs[0].dtype == DType::bf16, std::string(name) + " of an activation is not in bf16");
    }
    Variable gradient({{2, 4}, DType::f32, device}, "gradient");
    gradient.assign(comm::all_reduce_named(matmul(x, full({4, 4}, 0.25, DType::f32, device)), kAxis, Reduce::mean, 0));
    synchronize();
    for (const GraphNode& node : plan_on(device)->graph->nodes())
      if (node.name() == "all_reduce") require(node.outputs[0].dtype == DType::f32, "a gradient is not reduced in f32");
    // What is sent in bf16 is widened by the receiver, which expects what was traced.
    const Tensor y = matmul(x, full({4, 4}, 0.25, DType::f32, device));
    const Tensor from = comm::receive(y.spec(), kAxis, 1 - rank.rank());
    comm::send(y, kAxis, 1 - rank.rank());
    std::vector<float> sums;
    for (int row = 0; row < 2; ++row) {
      double total = 0;
      for (double value : part(whole_numbers({2, 4}, 1 - rank.rank()), 0, row, 2).values) total += value;
      sums.insert(sums.end(), 4, static_cast<float>(bfloat16(static_cast<float>(total * 0.25))));
    }
    require(from.to_vector<float>() == sums, "a message in bf16 is not what was computed");
    bool in_bf16 = false;
    for (const GraphNode& node : plan_on(device)->graph->nodes())
      if (node.name() == "send") in_bf16 = node.inputs[0].spec().dtype == DType::bf16;
    require(in_bf16, "a message of an activation is not in bf16");
  });
}

TEST(CollectiveErrors, NameOpShapeAndAxis) {
  on_two([](Rank& rank, Device device) {
    const Tensor x = zeros({3, 4}, DType::f32, device);
    auto error = [](const std::function<void()>& call) -> std::string {
      try {
        call();
      } catch (const Error& error) {
        return error.what();
      }
      return "no error";
    };
    auto expect = [&](const std::function<void()>& call, const std::string& text) {
      require(error(call) == text, error(call) + " instead of " + text);
    };
    expect([&] { comm::reduce_scatter(x, kAxis, 0); },
           "[reduce_scatter] dimension 0 of [3, 4] cannot be shared out evenly among 2 ranks along tensor");
    expect([&] { comm::all_to_all(x, kAxis, 0, 1); },
           "[all_to_all] dimension 0 of [3, 4] cannot be shared out evenly among 2 ranks along tensor");
    expect([&] { comm::all_gather(x, kAxis, 2); }, "[all_gather] axis 2 is out of range for a tensor of 2 dimensions");
    expect([&] { comm::broadcast(x, kAxis, 2); }, "[broadcast] rank 2 is none of the 2 along tensor: expected 0 to 1");
    expect([&] { comm::send(x, kAxis, rank.rank()); },
           fmt::format("[send] rank {} along tensor is this rank itself; expected another one", rank.rank()));
    expect([&] { comm::receive(x.spec(), Axis::data, 1); },
           "[receive] rank 1 is none of the 1 along data: expected 0 to 0");
    require(error([&] { comm::all_reduce(zeros({2}, DType::i64, device), kAxis, Reduce::mean); }).find("all_reduce") !=
                std::string::npos,
            "the mean of whole numbers");
    require(comm::all_gather(x, Axis::data, 0).value() == x.value(), "along an axis of one rank nothing is done");
  });
}

// Plans know axes alone: the next job finds those of the one before. Without a job they cannot run.
TEST(CollectivePlans, ServeTheNextJobAndNoneWithoutOne) {
  runtime::clear_plan_cache();
  std::shared_ptr<runtime::Plan> plans[2];
  for (int job = 0; job < 2; ++job) {
    const uint64_t compiled = runtime::cache_statistics().compiled;
    on_two([&](Rank& rank, Device device) {
      const Tensor x = tensor_of(whole_numbers({4}, rank.rank(), job), DType::f32, device);
      require_same("the sum in another job", comm::all_reduce(x, kAxis),
                   all_reduced({whole_numbers({4}, 0, job), whole_numbers({4}, 1, job)}, Reduce::sum)[0]);
      plans[rank.rank()] = plan_on(device);
    });
    if (job == 1) {
      EXPECT_EQ(runtime::cache_statistics().compiled, compiled);
    }
  }
  const Tensor x = tensor_of(whole_numbers({4}, 0), DType::f32, {});
  const std::vector<Value> leaves{x.value()};
  const std::shared_ptr<Completion> completion = runtime::submit(plans[0], leaves, {}).completion;
  completion->reported = true;  // to this test
  EXPECT_ERROR(completion->wait(), Error, "the job has been left, and its steps cannot run");
}

}  // namespace
}  // namespace bonfire::testing::collective_ops_test
