// No op, loss or question to a tensor goes on with an undefined one: each is an error that names the call and the
// module that makes it.

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <regex>
#include <set>

#include "bonfire/bonfire.h"

namespace bonfire::undefined_test {
namespace {

struct Call {
  std::string name;  // as the error begins: "[relu]"
  std::function<void()> make;
};

std::string message_of(const std::function<void()>& call) {
  PathScope net("net"), layer("fc");
  try {
    call();
  } catch (const GraphError& error) {
    return error.what();
  }
  return "no GraphError";
}

const Tensor none;

Tensor some(const Shape& shape = {2, 3}) { return ones(shape); }
Tensor ids(const Shape& shape = {2}) { return zeros(shape, DType::i64); }

// Each argument of each function, undefined in turn.
std::vector<Call> calls() {
  std::vector<Call> all = {
      {"cast", [] { cast(none, DType::f64); }},
      {"cast", [] { none.to(DType::f64); }},
      {"where", [] { where(none, some(), some()); }},
      {"where", [] { where(greater(some(), 0), none, some()); }},
      {"where", [] { where(greater(some(), 0), 1.0, none); }},
      {"clamp", [] { clamp(none, 0, 1); }},
      {"clamp", [] { clamp(some(), none, 1); }},
      {"zeros_like", [] { zeros_like(none); }},
      {"ones_like", [] { ones_like(none); }},
      {"dropout", [] { dropout(none, 0.5); }},
      {"dropout", [] { dropout(none, 0.5, false); }},
      {"sum", [] { sum(none); }},
      {"mean", [] { mean(none); }},
      {"max", [] { max(none); }},
      {"min", [] { min(none); }},
      {"argmax", [] { argmax(none, 0); }},
      {"argmin", [] { argmin(none, 0); }},
      {"top_k", [] { top_k(none, 1); }},
      {"sum_to", [] { sum_to(none, some().spec()); }},
      {"softmax", [] { softmax(none, 0); }},
      {"log_softmax", [] { log_softmax(none, 0); }},
      {"reshape", [] { reshape(none, {1}); }},
      {"flatten", [] { flatten(none); }},
      {"squeeze", [] { squeeze(none, 0); }},
      {"unsqueeze", [] { unsqueeze(none, 0); }},
      {"permute", [] { permute(none, {0}); }},
      {"transpose", [] { transpose(none, 0, 1); }},
      {"broadcast_to", [] { broadcast_to(none, {2}); }},
      {"concat",
       [] {
         concat({some(), none}, 0);
       }},
      {"stack",
       [] {
         stack({some(), none}, 0);
       }},
      {"split", [] { split(none, {1}, 0); }},
      {"split", [] { split(none, 1, 0); }},
      {"slice", [] { slice(none, 0, 0); }},
      {"pad",
       [] {
         pad(none, {Padding{1, 1}});
       }},
      {"copy_to", [] { copy_to(none, {}); }},
      {"to", [] { none.to(Device{}); }},
      {"gather", [] { gather(none, 0, ids()); }},
      {"gather", [] { gather(some(), 0, none); }},
      {"scatter_add", [] { scatter_add(none, 0, ids(), {2}); }},
      {"scatter_add", [] { scatter_add(some(), 0, none, {2}); }},
      {"index_select", [] { index_select(none, 0, ids()); }},
      {"index_select", [] { index_select(some(), 0, none); }},
      {"embedding", [] { embedding(none, ids()); }},
      {"embedding", [] { embedding(some(), none); }},
      {"one_hot", [] { one_hot(none, 3); }},
      {"matmul", [] { matmul(none, some()); }},
      {"matmul", [] { matmul(some(), none); }},
      {"linear", [] { linear(none, some()); }},
      {"linear", [] { linear(some(), none); }},
      {"conv2d",
       [] {
         conv2d(none, some({1, 1, 1, 1}));
       }},
      {"conv2d",
       [] {
         conv2d(some({1, 1, 2, 2}), none);
       }},
      {"max_pool2d", [] { max_pool2d(none, {.kernel = {2}}); }},
      {"avg_pool2d", [] { avg_pool2d(none, {.kernel = {2}}); }},
      {"adaptive_avg_pool2d",
       [] {
         adaptive_avg_pool2d(none, {1, 1});
       }},
      {"normalize_image", [] { normalize_image(none, some({1}), some({1})); }},
      {"batch_norm", [] { batch_norm(none, {}, {}, {}, {}); }},
      {"batch_norm", [] { batch_norm(some(), {}, {}, {}, {}, {.training = false}); }},
      {"batch_norm",
       [] {
         batch_norm(some(), {}, {}, Variable({{3}, DType::f32, {}}), {});
       }},
      {"layer_norm", [] { layer_norm(none); }},
      {"cross_entropy", [] { cross_entropy(none, ids()); }},
      {"cross_entropy", [] { cross_entropy(some(), none); }},
      {"mse_loss", [] { mse_loss(none, some()); }},
      {"mse_loss", [] { mse_loss(some(), none); }},
      {"l1_loss", [] { l1_loss(none, some()); }},
      {"smooth_l1_loss", [] { smooth_l1_loss(some(), none); }},
      {"top_k_correct", [] { top_k_correct(none, ids()); }},
      {"top_k_correct", [] { top_k_correct(some(), none); }},
      {"lstm", [] { lstm(none, std::vector<LstmWeights>(1)); }},
      {"lstm",
       [] {
         lstm(some({1, 1, 1}), std::vector<LstmWeights>(1));
       }},
      {"lstm",
       [] {
         LstmWeights weights{some({4, 1}), some({4, 1}), some({4}), none};
         lstm(some({1, 1, 1}), std::vector<LstmWeights>{weights});
       }},
      {"scaled_dot_product_attention",
       [] {
         scaled_dot_product_attention(none, some({1, 1, 2, 2}), some({1, 1, 2, 2}));
       }},
      {"scaled_dot_product_attention",
       [] {
         scaled_dot_product_attention(some({1, 1, 2, 2}), some({1, 1, 2, 2}), none);
       }},
      {"multihead_attention", [] { nn::multihead_attention(none, none, none, 1); }},
      {"detach", [] { none.detach(); }},
      {"assign",
       [] {
         Variable({{2}, DType::f32, {}}).assign(none);
       }},
      {"spec", [] { none.spec(); }},
      {"shape", [] { none.shape(); }},
      {"dtype", [] { none.dtype(); }},
      {"device", [] { none.device(); }},
      {"size", [] { none.size(0); }},
      {"rank", [] { none.rank(); }},
      {"item", [] { none.item(); }},
      {"copy_to_host", [] { none.copy_to_host({}); }},
      {"shape", [] { none.to_vector<float>(); }},
      {"grad", [] { none.grad(); }},
      {"requires_grad", [] { none.requires_grad(); }},
      {"set_requires_grad", [] { Tensor().set_requires_grad(true); }},
  };
  using Unary = Tensor (*)(const Tensor&);
  const std::pair<const char*, Unary> unary[] = {{"negative", negative},
                                                 {"absolute", absolute},
                                                 {"exp", exp},
                                                 {"log", log},
                                                 {"sqrt", sqrt},
                                                 {"rsqrt", rsqrt},
                                                 {"reciprocal", reciprocal},
                                                 {"square", square},
                                                 {"sin", sin},
                                                 {"cos", cos},
                                                 {"tanh", tanh},
                                                 {"sigmoid", sigmoid},
                                                 {"relu", relu},
                                                 {"gelu", gelu},
                                                 {"gelu_tanh", gelu_tanh},
                                                 {"silu", silu},
                                                 {"sign", sign},
                                                 {"erf", erf},
                                                 {"floor", floor},
                                                 {"logical_not", logical_not}};
  for (const auto& [name, function] : unary) all.push_back({name, [function = function] { function(none); }});
  using Binary = Tensor (*)(const Operand&, const Operand&);
  const std::pair<const char*, Binary> binary[] = {{"add", add},
                                                   {"sub", sub},
                                                   {"mul", mul},
                                                   {"div", div},
                                                   {"pow", pow},
                                                   {"maximum", maximum},
                                                   {"minimum", minimum},
                                                   {"equal", equal},
                                                   {"not_equal", not_equal},
                                                   {"less", less},
                                                   {"less_equal", less_equal},
                                                   {"greater", greater},
                                                   {"greater_equal", greater_equal}};
  for (const auto& [name, function] : binary)
    for (const auto& [a, b] : {std::pair<Operand, Operand>(none, some()), {some(), none}, {none, 2.0}, {2.0, none}})
      all.push_back({name, [function = function, a = a, b = b] { function(a, b); }});
  return all;
}

TEST(UndefinedTensors, AreAnErrorThatNamesTheCallAndTheModule) {
  for (const Call& call : calls()) {
    const std::string message = message_of(call.make);
    EXPECT_EQ(message.find("[" + call.name + "]"), 0U) << call.name << ": " << message;
    EXPECT_NE(message.find("in module net.fc"), std::string::npos) << call.name << ": " << message;
  }
  EXPECT_EQ(message_of([] { 2.0 - none; }),
            "[sub] input 1 is an undefined tensor in module net.fc; give it a value first");
  EXPECT_EQ(message_of([] {
              concat({some(), none}, 0);
            }),
            "[concat] part 1 is an undefined tensor in module net.fc; give it a value first");
}

// Whoever adds an op adds it above.
TEST(UndefinedTensors, AreTriedOnEveryFunctionOfTheOpsHeaders) {
  std::set<std::string> tried;
  for (const Call& call : calls()) tried.insert(call.name);
  std::ifstream all(BONFIRE_SOURCE_DIR "/src/bonfire/bonfire.h");
  const std::regex include("#include \"(bonfire/(?:ops|nn)/\\w+\\.h)\""),
      function("^(?:Tensor|TopK|LstmResult|std::vector<Tensor>) (\\w+)\\(.*(?:Tensor|Operand)\\b.*");
  int functions = 0;
  for (std::string line; std::getline(all, line);) {
    std::smatch header;
    if (!std::regex_search(line, header, include)) continue;
    std::ifstream stream(std::string(BONFIRE_SOURCE_DIR "/src/") + header[1].str());
    for (std::string text; std::getline(stream, text);)
      if (std::smatch found; std::regex_match(text, found, function)) {
        ++functions;
        EXPECT_TRUE(tried.contains(found[1].str())) << found[1] << " of " << header[1];
      }
  }
  EXPECT_GT(functions, 70);
}

TEST(UndefinedTensors, AreNoLossAndNoResultOfAStep) {
  EXPECT_NE(message_of([] { none.backward(); }).find("[backward]"), std::string::npos);
  EXPECT_NE(message_of([] {
              auto step = compile([](const Tensor&) { return Tensor(); });
              step(some());
            }).find("undefined"),
            std::string::npos);
  EXPECT_NE(message_of([] {
              auto step = compile([](const Tensor& x) { return x + 1.0; });
              step(none);
            }).find("undefined"),
            std::string::npos);
}

TEST(Axes, ThatAreNotThereAreAnError) {
  Tensor x = some({2, 3});
  EXPECT_EQ(x.size(-1), 3);
  auto message = [](const std::function<void()>& call) -> std::string {
    PathScope layer("fc");
    try {
      call();
    } catch (const ShapeError& error) {
      return error.what();
    }
    return "no ShapeError";
  };
  for (int axis : {2, 9, -3, 1000000, -1000000})
    EXPECT_EQ(message([&] { x.size(axis); }),
              fmt::format("[size] axis {} is out of range for f32 [2, 3] cpu:0 in module fc", axis));
  EXPECT_EQ(message([&] { EXPECT_EQ(x.shape()[9], 0); }),
            "[shape] axis 9 is out of range for [2, 3], a shape of 2 dimensions");
  EXPECT_EQ(message([&] { some({}).size(0); }), "[size] axis 0 is out of range for f32 [] cpu:0 in module fc");
}

}  // namespace
}  // namespace bonfire::undefined_test
