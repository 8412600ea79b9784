#include "pharos/train/data/prediction.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "pharos/train/data/context_slice.h"

namespace pharos::train {
namespace {

Microbatch example() {
  Microbatch whole;
  whole.tokens = at::arange(1, 33, at::kLong).reshape({2, 16});
  whole.labels = whole.tokens + 1;
  whole.loss_mask = (whole.tokens % 3 != 0).to(at::kFloat);
  whole.positions = at::arange(16, at::kLong);
  whole.num_loss_tokens = whole.loss_mask.sum();
  return whole;
}

// At the place of t stand token, label and weight of t + k; the last k have none.
TEST(Predictions, AreShiftedByTheirDepth) {
  const Microbatch whole = example();
  const auto predictions = predictions_of(whole, 2, 0, 1);
  ASSERT_EQ(predictions.size(), 2u);
  for (std::int64_t k = 1; k <= 2; ++k) {
    const Prediction& prediction = predictions[static_cast<std::size_t>(k - 1)];
    const std::int64_t kept = 16 - k;
    EXPECT_TRUE(at::equal(prediction.input.tokens.narrow(1, 0, kept), whole.tokens.narrow(1, k, kept)));
    EXPECT_TRUE(at::equal(prediction.input.labels.narrow(1, 0, kept), whole.labels.narrow(1, k, kept)));
    EXPECT_TRUE(at::equal(prediction.loss_mask.narrow(1, 0, kept), whole.loss_mask.narrow(1, k, kept)));
    EXPECT_FALSE(prediction.loss_mask.narrow(1, kept, k).any().item<bool>());
    EXPECT_FALSE(prediction.input.labels.narrow(1, kept, k).any().item<bool>());
    EXPECT_EQ(prediction.num_loss_tokens.item<float>(), whole.loss_mask.narrow(1, k, kept).sum().item<float>());
  }
}

// The ranks of a context-parallel group together have what one rank has: tokens are shifted across their borders.
TEST(Predictions, AreShiftedBeforeTheyAreDivided) {
  const Microbatch whole = example();
  const Prediction all = predictions_of(whole, 1, 0, 1).front();
  Microbatch shifted = whole;
  shifted.tokens = all.input.tokens;
  shifted.labels = all.input.labels;
  shifted.loss_mask = all.loss_mask;
  for (const std::int64_t rank : {0, 1}) {
    const Prediction part = predictions_of(whole, 1, rank, 2).front();
    const Microbatch expected = slice_context(shifted, rank, 2);
    EXPECT_TRUE(at::equal(part.input.tokens, expected.tokens));
    EXPECT_TRUE(at::equal(part.input.labels, expected.labels));
    EXPECT_TRUE(at::equal(part.loss_mask, expected.loss_mask));
    EXPECT_TRUE(at::equal(part.num_loss_tokens, all.num_loss_tokens));
  }
}

TEST(Predictions, OfSequencesShorterThanTheirDepthAreEmpty) {
  Microbatch whole;
  whole.tokens = whole.labels = at::ones({1, 2}, at::kLong);
  whole.loss_mask = at::ones({1, 2});
  EXPECT_EQ(predictions_of(whole, 3, 0, 1).back().num_loss_tokens.item<float>(), 0);
}

}  // namespace
}  // namespace pharos::train
