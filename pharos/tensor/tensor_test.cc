#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "pharos/base/error.h"
#include "pharos/tensor/parameter.h"
#include "pharos/tensor/random.h"

namespace pharos::tensor {
namespace {

using comm::Mesh;
using comm::MeshDim;
using ::testing::ElementsAre;

// Known answers of philox4x32-10 published with the reference implementation (Random123, kat_vectors).
TEST(Philox, KnownAnswers) {
  struct Case {
    std::array<std::uint32_t, 4> counter;
    std::array<std::uint32_t, 2> key;
    std::array<std::uint32_t, 4> expected;
  };
  const Case cases[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       {0xffffffff, 0xffffffff},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const Case& c : cases) EXPECT_EQ(philox(c.counter, c.key), c.expected);
}

TEST(Random, StreamsDifferByNameAndSeed) {
  EXPECT_NE(stream_key(1, "a"), stream_key(1, "b"));
  EXPECT_NE(stream_key(1, "a"), stream_key(2, "a"));
  EXPECT_EQ(stream_key(1, "a"), stream_key(1, "a"));
}

TEST(Random, NormalHasMomentsAndTails) {
  at::Tensor values = at::empty({1000, 1001}, at::kFloat);
  fill_normal(values, 0.5, stream_key(3, "w"), {1000, 1001}, {0, 0});
  const at::Tensor wide = values.to(at::kDouble);
  EXPECT_NEAR(wide.mean().item<double>(), 0, 0.002);
  EXPECT_NEAR(wide.std().item<double>(), 0.5, 0.001);
  EXPECT_NEAR((wide.pow(4).mean() / wide.pow(2).mean().pow(2)).item<double>(), 3, 0.02);
  EXPECT_NEAR((wide.abs() > 1.0).to(at::kDouble).mean().item<double>(), 0.0455, 0.001);
}

TEST(Random, UniformValues) {
  at::Tensor values = at::empty({400, 500}, at::kFloat);
  fill_uniform(values, 0.75, 1.25, stream_key(3, "jitter"), {400, 500}, {0, 0});
  const at::Tensor wide = values.to(at::kDouble);
  EXPECT_NEAR(wide.mean().item<double>(), 1, 0.001);
  EXPECT_NEAR(wide.std().item<double>(), 0.5 / std::sqrt(12.0), 0.001);
  EXPECT_NEAR((wide < 0.8).to(at::kDouble).mean().item<double>(), 0.1, 0.003);
}

// A slice drawn alone == the same slice cut from the whole, bit for bit.
TEST(Random, SliceEqualsCutOfWhole) {
  const std::vector<std::int64_t> shape{7, 5, 9};
  at::Tensor whole = at::empty(shape, at::kFloat);
  fill_normal(whole, 1, 42, shape, {0, 0, 0});
  at::Tensor part = at::empty({3, 2, 4}, at::kFloat);
  fill_normal(part, 1, 42, shape, {2, 1, 3});
  EXPECT_TRUE(at::equal(part, whole.narrow(0, 2, 3).narrow(1, 1, 2).narrow(2, 3, 4)));
  fill_uniform(whole, -1, 3, 42, shape, {0, 0, 0});
  fill_uniform(part, -1, 3, 42, shape, {2, 1, 3});
  EXPECT_TRUE(at::equal(part, whole.narrow(0, 2, 3).narrow(1, 1, 2).narrow(2, 3, 4)));
  EXPECT_TRUE(((whole >= -1) & (whole <= 3)).all().item<bool>());
  const at::Tensor mask = dropout_mask(shape, 0.3, 42, shape, {0, 0, 0});
  EXPECT_TRUE(at::equal(dropout_mask({3, 2, 4}, 0.3, 42, shape, {2, 1, 3}),
                        mask.narrow(0, 2, 3).narrow(1, 1, 2).narrow(2, 3, 4)));
}

TEST(Random, DropoutKeepsTheMean) {
  const at::Tensor mask = dropout_mask({500, 400}, 0.1, 5, {500, 400}, {0, 0});
  EXPECT_NEAR(mask.to(at::kDouble).mean().item<double>(), 1, 0.005);
  EXPECT_NEAR((mask == 0).to(at::kDouble).mean().item<double>(), 0.1, 0.005);
  EXPECT_THROW(dropout_mask({2}, 1.0, 5, {2}, {0}), base::InternalError);
}

Parameter fused_qkv() {
  Parameter parameter;
  parameter.name = "qkv.weight";
  parameter.pieces = {{"q.weight", {8, 6}, {{0, MeshDim::kTensor}}, Init::normal(1)},
                      {"k.weight", {4, 6}, {{0, MeshDim::kTensor, 2}}, Init::normal(1)},
                      {"v.weight", {4, 6}, {{0, MeshDim::kTensor, 2}}, Init::constant(3)}};
  return parameter;
}

// The local slices of every tensor-parallel layout == the rows of the unsharded model (seed and name decide, not the
// rank).
TEST(Parameter, SameModelInEveryLayout) {
  const Mesh one(1, {});
  Parameter whole = fused_qkv();
  for (auto& piece : whole.pieces) piece.splits[0].replicas = 1;
  declare(whole, at::kFloat, one, 0);
  EXPECT_TRUE(whole.data.is_meta());
  materialize(whole, at::kCPU, 9, one, 0);
  EXPECT_THAT(whole.data.sizes().vec(), ElementsAre(16, 6));
  const Mesh four(4, {.tensor = 4});
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    Parameter local = fused_qkv();
    declare(local, at::kFloat, four, rank);
    materialize(local, at::kCPU, 9, four, rank);
    EXPECT_THAT(local.data.sizes().vec(), ElementsAre(2 + 2 + 2, 6));
    EXPECT_TRUE(at::equal(piece_view(local, local.data, 0, four, rank),
                          piece_view(whole, whole.data, 0, one, 0).narrow(0, 2 * rank, 2)));
    EXPECT_TRUE(at::equal(piece_view(local, local.data, 1, four, rank),
                          piece_view(whole, whole.data, 1, one, 0).narrow(0, rank / 2 * 2, 2)));
    EXPECT_TRUE(piece_view(local, local.data, 2, four, rank).eq(3).all().item<bool>());
  }
  EXPECT_EQ(num_elements(whole), 16 * 6);
}

TEST(Parameter, VocabularyPaddingIsZeroAndNotPartOfThePiece) {
  const Mesh two(2, {.tensor = 2});
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    Parameter table;
    table.name = "embedding";
    table.pieces = {{"embedding", {5, 3}, {{0, MeshDim::kTensor}}, Init::normal(1), 8}};
    declare(table, at::kFloat, two, rank);
    materialize(table, at::kCPU, 1, two, rank);
    EXPECT_THAT(table.data.sizes().vec(), ElementsAre(4, 3));
    EXPECT_EQ(piece_view(table, table.data, 0, two, rank).size(0), rank == 0 ? 4 : 1);
    if (rank == 1) {
      EXPECT_EQ(table.data.narrow(0, 1, 3).abs().sum().item<float>(), 0);
    }
  }
}

TEST(Parameter, UnevenSplitIsRefused) {
  const Mesh three(3, {.tensor = 3});
  const Piece piece{"w", {8, 2}, {{0, MeshDim::kTensor}}, Init::constant(0)};
  EXPECT_THROW(local_slice(piece, three, 0), base::InternalError);
}

}  // namespace
}  // namespace pharos::tensor
