#include "tests/golden/golden.h"

#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bonfire/base/error.h"
#include "bonfire/base/random.h"

namespace bonfire::golden {

namespace {

int64_t product(std::span<const int64_t> extents) {
  return std::accumulate(extents.begin(), extents.end(), int64_t{1}, std::multiplies<>());
}

// 2u - 1: u is a multiple of 2^-24, so both operations are exact.
std::vector<float> signed_values(std::string_view stream, int64_t count) {
  std::vector<float> values = uniform_values(stream, count);
  for (float& value : values) value = 2.0F * value - 1.0F;
  return values;
}

// floor(u * below): 24 bits times a small integer are exact in double.
std::vector<int64_t> whole_values(std::string_view stream, int64_t count, int64_t below) {
  std::vector<int64_t> values;
  values.reserve(count);
  for (float u : uniform_values(stream, count))
    values.push_back(static_cast<int64_t>(static_cast<double>(u) * static_cast<double>(below)));
  return values;
}

}  // namespace

uint64_t fnv1a64(std::string_view text) {
  uint64_t value = 0xCBF29CE484222325ULL;
  for (unsigned char byte : text) value = (value ^ byte) * 0x100000001B3ULL;
  return value;
}

std::vector<float> uniform_values(std::string_view stream, int64_t count, int64_t first) {
  uint64_t number = fnv1a64(stream);
  std::vector<float> values(count);
  for (int64_t i = 0; i < count;) {  // a block at a time: a hundred million values are asked for at once
    auto index = static_cast<uint64_t>(first + i);
    RandomBlock block = philox(kSeed, number, index / 4);
    for (uint64_t word = index % 4; word < 4 && i < count; ++word, ++i) values[i] = uniform_from_bits(block.word[word]);
  }
  return values;
}

std::vector<float> parameter_values(std::string_view name, std::span<const int64_t> shape, Kind kind) {
  int64_t count = product(shape);
  std::vector<float> values = signed_values(name, count);
  if (kind == Kind::weight) {
    int64_t fan_in = count / shape[0];
    auto bound = static_cast<float>(std::sqrt(3.0 / static_cast<double>(fan_in)));
    for (float& value : values) value *= bound;
  } else {  // an eighth is exact, so that 1 + value / 8 rounds once, fused or not
    float base = kind == Kind::norm_weight ? 1.0F : 0.0F;
    for (float& value : values) value = base + 0.125F * value;
  }
  return values;
}

std::vector<float> image_values(int64_t step, int64_t count) {
  return signed_values(fmt::format("image:{}", step), count);
}

std::vector<float> box_values(int64_t step, int64_t count) {
  return uniform_values(fmt::format("box:{}", step), count);
}

std::vector<int64_t> label_values(int64_t step, int64_t count, int64_t classes) {
  return whole_values(fmt::format("label:{}", step), count, classes);
}

std::vector<int64_t> token_values(int64_t step, int64_t count, int64_t vocabulary) {
  std::vector<int64_t> values = whole_values(fmt::format("token:{}", step), count, vocabulary - 1);
  for (int64_t& value : values) ++value;
  return values;
}

std::vector<float> gradient_values(std::string_view name, int64_t step, int64_t count) {
  return signed_values(fmt::format("grad:{}:{}", name, step), count);
}

nlohmann::json load_json(std::string_view name) {
  std::string path = fmt::format("{}/tests/golden/{}.json", BONFIRE_SOURCE_DIR, name);
  std::ifstream file(path);
  if (!file) throw_error<DataError>("[golden] {} cannot be read; tests/golden/generate.py writes it", path);
  try {
    return nlohmann::json::parse(file);
  } catch (const nlohmann::json::exception& fault) {
    throw_error<DataError>("[golden] {} is damaged ({}); tests/golden/generate.py writes it", path, fault.what());
  }
}

Kind kind_from_text(std::string_view text) {
  if (text == "weight") return Kind::weight;
  if (text == "norm_weight") return Kind::norm_weight;
  if (text == "bias") return Kind::bias;
  throw_error<DataError>("[golden] kind is '{}', expected weight, norm_weight or bias", text);
}

int64_t Model::input_count() const { return product(input_shape); }
int64_t Model::label_count() const { return product(label_shape); }

Model load_model(std::string_view name) {
  nlohmann::json json = load_json(name);
  Model model{.name = json.at("model"),
              .input_shape = json.at("input_shape"),
              .takes_tokens = json.at("input") == "token",
              .vocabulary = json.at("vocabulary"),
              .label_shape = json.at("label_shape"),
              .classes = json.at("classes"),
              .lr = json.at("optimizer").at("lr"),
              .momentum = json.at("optimizer").value("momentum", 0.0),
              .uses_adamw = json.at("optimizer").at("name") == "adamw",
              .weight_decay = json.at("optimizer").value("weight_decay_of_matrices", 0.0),
              .parameter_count = json.at("parameter_count"),
              .parameters = {},
              .outputs = {},
              .buffers = {},
              .losses = json.at("losses"),
              .losses_f64 = json.at("losses_f64"),
              .losses_bf16 = json.at("losses_bf16"),
              .eval_loss = json.at("eval_loss"),
              .eval_loss_f64 = json.at("eval_loss_f64")};
  if (json.contains("sizes")) {
    const nlohmann::json& sizes = json.at("sizes");
    model.layers = sizes.at("layers"), model.heads = sizes.at("heads");
    model.width = sizes.at("width"), model.context = sizes.at("context");
  }
  for (const nlohmann::json& row : json.at("parameters"))
    model.parameters.push_back({.name = row.at("name"),
                                .shape = row.at("shape"),
                                .kind = kind_from_text(row.at("kind").get<std::string>()),
                                .gradient = {.f32 = row.at("gradient_norm"), .f64 = row.at("gradient_norm_f64")}});
  for (const nlohmann::json& row : json.at("outputs"))
    model.outputs.push_back(
        {.name = row.at("name"), .norm = {.f32 = row.at("norm"), .f64 = row.at("norm_f64")}, .head = row.at("head")});
  for (const nlohmann::json& row : json.at("buffers"))
    model.buffers.push_back({.name = row.at("name"), .norm = {.f32 = row.at("norm"), .f64 = row.at("norm_f64")}});
  return model;
}

}  // namespace bonfire::golden
