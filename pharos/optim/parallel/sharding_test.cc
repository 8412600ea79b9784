#include "pharos/optim/parallel/sharding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pharos/optim/parallel/model_ranges.h"
#include "pharos/optim/parallel/test_model.h"

namespace pharos::optim {
namespace {

using config::ShardingStrategy;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(DataParallelOptions, FollowFromTheConfiguration) {
  config::RunConfig config;
  EXPECT_EQ(data_parallel_options(config).strategy, ShardingStrategy::kNoShard);
  EXPECT_FALSE(data_parallel_options(config).reduce_in_fp32);
  EXPECT_TRUE(data_parallel_options(config).averages);
  config.ddp.use_distributed_optimizer = true;
  config.ddp.grad_reduce_in_fp32 = config.ddp.overlap_grad_reduce = config.ddp.overlap_param_gather = true;
  config.model.calculate_per_token_loss = true;
  config.ddp.num_buckets = 3;
  const DataParallelOptions options = data_parallel_options(config);
  EXPECT_EQ(options.strategy, ShardingStrategy::kOptim);
  EXPECT_TRUE(options.reduce_in_fp32 && options.overlap_grad_reduce && options.overlap_param_gather);
  EXPECT_FALSE(options.averages);
  EXPECT_EQ(options.num_buckets, 3);
  config.ddp.data_parallel_sharding_strategy = ShardingStrategy::kOptimGradsParams;
  EXPECT_EQ(data_parallel_options(config).strategy, ShardingStrategy::kOptimGradsParams);
}

std::vector<std::vector<std::size_t>> members(const FlatLayout& layout) {
  std::vector<std::vector<std::size_t>> result;
  for (const Bucket& bucket : layout.buckets) result.push_back(bucket.parameters);
  return result;
}

TEST(DataParallelLayout, BucketsByStrategyAndSize) {
  const TestModel model(at::kFloat);
  const auto layout = [&](const DataParallelOptions& options) {
    return data_parallel_layout({model.all()}, options, 3);
  };
  EXPECT_THAT(members(layout({})), ElementsAre(ElementsAre(6, 5, 4, 3, 2, 1, 0)));
  EXPECT_THAT(members(layout({.strategy = ShardingStrategy::kOptimGrads})),
              ElementsAre(ElementsAre(6), ElementsAre(5, 4), ElementsAre(3, 2, 1), ElementsAre(0)));
  EXPECT_THAT(members(layout({.strategy = ShardingStrategy::kOptimGrads, .bucket_size = 300})),
              ElementsAre(ElementsAre(6, 5), ElementsAre(4, 3, 2), ElementsAre(1, 0)));
  EXPECT_LE(layout({.num_buckets = 2}).buckets.size(), 2u);
  EXPECT_EQ(layout({.overlap_grad_reduce = true}).buckets.size(), 1u);  // far below 40 million elements
}

// Every element of the layout is in the range of exactly one rank, and each range is made of whole cache lines.
TEST(DataParallelLayout, ShardsDivideEveryBucket) {
  const TestModel model(at::kFloat);
  for (const std::int64_t size : {1, 2, 3, 5}) {
    const FlatLayout layout =
        data_parallel_layout({model.all()}, {.strategy = ShardingStrategy::kOptimGradsParams}, size);
    at::Tensor holders = at::zeros({layout.num_elements}, at::kInt);
    for (std::int64_t shard = 0; shard < size; ++shard) {
      const auto ranges = shard_ranges(layout, {size, shard});
      EXPECT_EQ(num_elements(ranges) * size, layout.num_elements);
      for (const HeldRange& range : ranges) {
        EXPECT_EQ(range.begin % kFlatAlignment, 0);
        EXPECT_EQ(range.offset % kFlatAlignment, 0);
        holders.narrow(0, range.begin, range.length()).add_(1);
      }
    }
    EXPECT_TRUE(holders.eq(1).all().item<bool>());
  }
}

tensor::Parameter fused(const comm::Mesh& mesh, std::int64_t rank) {
  tensor::Parameter parameter;
  parameter.name = "qkv";
  parameter.pieces = {{"q", {8, 3}, {{0, comm::MeshDim::kTensor}}, {}},
                      {"k", {2, 3}, {{0, comm::MeshDim::kTensor, 2}}, {}}};
  tensor::declare(parameter, at::kFloat, mesh, rank);
  return parameter;
}

tensor::Parameter single(tensor::Piece piece, const comm::Mesh& mesh, std::int64_t rank, int axis = 0) {
  tensor::Parameter parameter;
  parameter.name = piece.name;
  parameter.pieces = {std::move(piece)};
  parameter.axis = axis;
  tensor::declare(parameter, at::kFloat, mesh, rank);
  return parameter;
}

// Four tensor-parallel ranks: q is split in four, k in two that two neighbours hold, the norm is whole on all.
TEST(ModelRanges, CountEveryElementOnce) {
  const comm::Mesh mesh(4, {.tensor = 4});
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    tensor::Parameter qkv = fused(mesh, rank);
    tensor::Parameter norm = single({"norm", {5}, {}, {}}, mesh, rank);
    norm.sum_gradient_over_tensor = true;
    tensor::Parameter bias = single({"bias", {4}, {}, {}}, mesh, rank);
    const ModelRanges ranges = model_ranges({&qkv, &norm, &bias}, mesh, rank);
    const ElementRange q{0, 0, 6}, k{0, 6, 9}, whole_norm{1, 0, 5}, whole_bias{2, 0, 4};
    EXPECT_EQ(ranges.summed.size(), 2u);
    EXPECT_THAT(ranges.summed.at(2), ElementsAre(k));
    EXPECT_THAT(ranges.summed.at(4), ElementsAre(whole_norm));
    if (rank == 0) {
      EXPECT_THAT(ranges.counted_elsewhere, IsEmpty());
      EXPECT_THAT(ranges.counted, ElementsAre(ElementsAre(q, k), ElementsAre(whole_norm), ElementsAre(whole_bias)));
    } else if (rank == 2) {
      EXPECT_THAT(ranges.counted_elsewhere, ElementsAre(whole_norm, whole_bias));
    } else {
      EXPECT_THAT(ranges.counted_elsewhere, ElementsAre(k, whole_norm, whole_bias));
      EXPECT_THAT(ranges.counted, ElementsAre(ElementsAre(q), IsEmpty(), IsEmpty()));
    }
  }
}

// A piece that is a column block of its parameter lies in one range per row; rows of padding belong to nobody.
TEST(ModelRanges, KnowColumnsAndPadding) {
  const comm::Mesh mesh(2, {.tensor = 2});
  tensor::Parameter columns = single({"a", {2, 4}, {{1, comm::MeshDim::kTensor, 2}}, {}}, mesh, 1, 1);
  columns.pieces.push_back({"b", {2, 2}, {{1, comm::MeshDim::kTensor}}, {}});
  tensor::declare(columns, at::kFloat, mesh, 1);
  tensor::Parameter padded = single({"vocabulary", {5, 2}, {{0, comm::MeshDim::kTensor}}, {}, 8}, mesh, 1);
  const ModelRanges ranges = model_ranges({&columns, &padded}, mesh, 1);
  EXPECT_THAT(ranges.counted_elsewhere, ElementsAre(ElementRange{0, 0, 4}, ElementRange{0, 5, 9}));
  EXPECT_THAT(ranges.counted, ElementsAre(ElementsAre(ElementRange{0, 4, 5}, ElementRange{0, 9, 10}),
                                          ElementsAre(ElementRange{1, 0, 2})));
}

}  // namespace
}  // namespace pharos::optim
