#include "pharos/train/data/context_slice.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace pharos::train {
namespace {

// Every token of the sequences lies on one rank, with its label, weight and position; what all ranks need stays whole.
TEST(SliceContext, DividesTokensAndKeepsTheWhole) {
  Microbatch whole;
  whole.tokens = at::arange(32, at::kLong).reshape({2, 16});
  whole.labels = whole.tokens + 100;
  whole.loss_mask = (whole.tokens % 3 == 0).to(at::kFloat);
  whole.positions = at::arange(16, at::kLong);
  whole.segments = (whole.tokens > 20).to(at::kLong);
  whole.num_loss_tokens = whole.loss_mask.sum();
  whole.first_sample = 6;
  std::vector<at::Tensor> tokens, weights;
  for (const std::int64_t rank : {0, 1}) {
    const Microbatch part = slice_context(whole, rank, 2);
    EXPECT_TRUE(at::equal(part.labels, part.tokens + 100));
    EXPECT_TRUE(at::equal(part.tokens[1], part.positions + 16));
    EXPECT_TRUE(at::equal(part.segments, whole.segments));
    EXPECT_EQ(part.num_loss_tokens.item<float>(), 11);
    EXPECT_EQ(part.first_sample, 6);
    tokens.push_back(part.tokens);
    weights.push_back(part.loss_mask);
  }
  EXPECT_TRUE(at::equal(tokens[1][0], at::arange(4, 12, at::kLong)));
  EXPECT_TRUE(at::equal(std::get<0>(at::cat(tokens, 1).sort(1)), whole.tokens));
  EXPECT_EQ(at::cat(weights).sum().item<float>(), 11);
}

// Restarted positions are [batch, tokens]; one rank has everything.
TEST(SliceContext, PositionsOfEachSequence) {
  Microbatch whole;
  whole.tokens = whole.labels = whole.loss_mask = at::zeros({2, 8}, at::kLong);
  whole.positions = at::arange(16, at::kLong).reshape({2, 8}) % 5;
  EXPECT_TRUE(at::equal(slice_context(whole, 1, 2).positions, whole.positions.narrow(1, 2, 4)));
  EXPECT_TRUE(slice_context(whole, 0, 1).positions.is_same(whole.positions));
}

}  // namespace
}  // namespace pharos::train
