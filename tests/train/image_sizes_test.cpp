#include "bonfire/train/data/image_sizes.h"

#include <gtest/gtest.h>

#include "bonfire/base/error.h"
#include "bonfire/ops/pooling.h"
#include "tests/support/expect_error.h"

namespace bonfire::train::image_sizes_test {
namespace {

struct Pools : nn::Module {
  Pools() : Module("Pools") {}
};

TEST(RequireSize, SaysFromWhereOnAModelTakesImages) {
  models::Model model(Pools(), [](const Tensor& image) -> std::vector<Tensor> {
    return {max_pool2d(max_pool2d(image, {.kernel = {3, 3}}), {.kernel = {3, 3}})};
  });
  require_size(model, "pools", {9, 9, 1});
  require_size(model, "pools", {20, 11, 3});
  EXPECT_ERROR(
      require_size(model, "pools", {8, 9, 1}), ConfigError,
      "pools cannot take images of 8 x 9; it takes 9 x 9 and larger: add image_size=9, or choose another model");
}

}  // namespace
}  // namespace bonfire::train::image_sizes_test
