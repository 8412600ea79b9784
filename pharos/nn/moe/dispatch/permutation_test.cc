#include "pharos/nn/moe/dispatch/permutation.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "pharos/base/error.h"
#include "pharos/base/json.h"

namespace pharos::nn::moe {
namespace {

at::Tensor numbers_of(const nlohmann::json& values) {
  return at::tensor(values.get<std::vector<std::int64_t>>(), at::kLong);
}

at::Tensor values_of(const nlohmann::json& values, std::int64_t width) {
  return at::tensor(values.get<std::vector<double>>(), at::kFloat).view({-1, width});
}

/// k different bins for each token, about a fifth of them dropped.
at::Tensor random_choices(std::int64_t num_tokens, std::int64_t topk, std::int64_t num_bins) {
  const auto choices = at::rand({num_tokens, num_bins}).argsort(std::int64_t{1}).narrow(1, 0, topk);
  return choices.masked_fill(at::rand({num_tokens, topk}) < 0.2, -1);
}

// Megatron's order of rows, and its sum of hidden · probability back into tokens.
TEST(Permutation, IsMegatrons) {
  const auto oracle = base::read_json_file(PHAROS_TEST_DATA "/megatron/moe_permutation.json");
  for (const auto& one : oracle["cases"]) {
    SCOPED_TRACE(one["name"].get<std::string>());
    const auto choices = numbers_of(one["chosen"]).view({one["tokens"].get<std::int64_t>(), -1});
    const auto order = sort_choices(choices, one["experts"], std::nullopt);
    EXPECT_TRUE(order.tokens.equal(numbers_of(one["permuted_from"])));
    const auto probabilities = take_rows(values_of(one["probabilities"], 1), order.choices);
    EXPECT_TRUE(probabilities.equal(values_of(one["permuted_probabilities"], 1)));
    const auto rows = take_rows(values_of(one["hidden"], 4), order.tokens) * probabilities;
    EXPECT_TRUE(at::allclose(sum_rows(rows, order.rows), values_of(one["unpermuted"], 4), 1e-6, 1e-6));
  }
}

TEST(Permutation, OperationsGiveWhatTheLoopGives) {
  at::manual_seed(3);
  for (const std::int64_t num_tokens : {0, 1, 37}) {
    for (const std::optional<std::int64_t> rows_per_bin : {std::optional<std::int64_t>(), {37}}) {
      const auto choices = random_choices(num_tokens, 3, 8);
      const auto loop = sort_choices(choices, 8, rows_per_bin);
      const auto operations = sort_choices_by_operations(choices, 8, rows_per_bin);
      EXPECT_TRUE(loop.tokens.equal(operations.tokens)) << loop.tokens << operations.tokens;
      EXPECT_TRUE(loop.choices.equal(operations.choices));
      EXPECT_TRUE(loop.rows.equal(operations.rows));
      EXPECT_TRUE(loop.counts.equal(operations.counts));
      EXPECT_TRUE(loop.counts.equal(count_choices(choices, 8)));
      EXPECT_EQ(loop.counts.sum().item<std::int64_t>(), choices.ge(0).sum().item<std::int64_t>());
    }
  }
}

TEST(Permutation, PaddedBinsEndInEmptyRows) {
  const auto choices = at::tensor({2, 0, -1, 2, 2, -1}, at::kLong).view({3, 2});
  const auto order = sort_choices(choices, 3, 4);
  EXPECT_TRUE(order.tokens.equal(at::tensor({0, -1, -1, -1, -1, -1, -1, -1, 0, 1, 2, -1}, at::kLong)));
  EXPECT_TRUE(order.rows.equal(at::tensor({8, 0, -1, 9, 10, -1}, at::kLong).view({3, 2})));
  EXPECT_THROW(sort_choices(choices, 3, 2), base::InternalError);
}

// Σ over tokens of <sum_rows(r), x> = Σ over rows of <r, take_rows(x)>: each is the gradient of the other.
TEST(Permutation, TakingAndSummingAreTransposes) {
  at::manual_seed(4);
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const std::optional<std::int64_t> rows_per_bin : {std::optional<std::int64_t>(), {20}}) {
      const auto choices = random_choices(20, 2, 4);
      const auto order = sort_choices(choices, 4, rows_per_bin);
      const auto tokens = at::randn({20, 5}, at::kDouble).to(type);
      const auto rows = at::randn({order.tokens.size(0), 5}, at::kDouble).to(type);
      const auto taken = take_rows(tokens, order.tokens), sums = sum_rows(rows, order.rows);
      EXPECT_EQ(sums.scalar_type(), type);
      const double left = (sums * tokens).sum(at::kDouble).item<double>();
      const double right = (rows * taken).sum(at::kDouble).item<double>();
      EXPECT_NEAR(left, right, type == at::kBFloat16 ? 0.5 : 1e-4);
      const auto empty = order.tokens.lt(0);
      EXPECT_EQ(taken.index({empty}).abs().sum().item<double>(), 0);
    }
  }
}

TEST(Permutation, SumsOfNarrowTypesAreRoundedOnce) {
  const auto rows = at::tensor({256.0, 1.0, 1.0}).to(at::kBFloat16).view({3, 1});  // 257 is no bfloat16
  EXPECT_EQ(sum_rows(rows, at::tensor({0, 1, 2}, at::kLong).view({1, 3})).item<float>(), 258);
}

}  // namespace
}  // namespace pharos::nn::moe
