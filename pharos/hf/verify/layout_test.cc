// The numbers of the reference implementation when several ranks compute them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pharos/comm/testing.h"
#include "pharos/hf/test_support.h"
#include "pharos/hf/verify/verify.h"

namespace pharos::hf {
namespace {

using test::error_of;
using test::fixture;
using test::FixtureCopy;
using ::testing::HasSubstr;

/// Of rank 0; the verdict of all must be the same.
VerifyResult verify_on_ranks(const std::filesystem::path& folder, const VerifyLayout& layout) {
  std::vector<VerifyResult> results(static_cast<std::size_t>(layout.world_size()));
  comm::testing::run_ranks(layout.world_size(), [&](comm::World& world) {
    results[static_cast<std::size_t>(world.rank())] = verify(folder, folder / "oracle.safetensors", world, layout);
  });
  for (const VerifyResult& result : results) EXPECT_EQ(result.ok(), results[0].ok());
  return results[0];
}

TEST(HfVerifyLayout, EveryLayoutAgreesWithTheReference) {
  const VerifyLayout layouts[] = {{.tensor = 2},
                                  {.tensor = 2, .sequence_parallel = true},
                                  {.pipeline = 2},
                                  {.data = 2},
                                  {.tensor = 2, .pipeline = 2, .sequence_parallel = true}};
  for (const char* name : {"gpt2", "llama"}) {  // tied, learned positions, one tensor for q, k and v; grouped queries
    for (const VerifyLayout& layout : layouts) {
      const VerifyResult result = verify_on_ranks(fixture(name), layout);
      EXPECT_TRUE(result.ok()) << name << " tp " << layout.tensor << " pp " << layout.pipeline << "\n"
                               << render_table(result);
      const checkpoint::SafetensorsSet set(fixture(name));
      EXPECT_GT(result.checks.size(), set.names().size());
    }
  }
}

TEST(HfVerifyLayout, AWrongWeightOfAnyRankFails) {
  for (const char* tensor : {"model.layers.0.mlp.down_proj.weight", "model.layers.1.self_attn.v_proj.weight"}) {
    const FixtureCopy copy("llama");
    copy.change_weights([&](FixtureCopy::Weights& weights) { weights[tensor].view({-1})[-1] += 1; });
    EXPECT_FALSE(verify_on_ranks(copy.path(), {.tensor = 2}).ok()) << tensor;
    EXPECT_FALSE(verify_on_ranks(copy.path(), {.pipeline = 2}).ok()) << tensor;
  }
}

TEST(HfVerifyLayout, NamesEverySizeThatDoesNotDivide) {
  const auto error = [](const VerifyLayout& layout) {
    return error_of([&] { check_verify(fixture("llama"), fixture("llama") / "oracle.safetensors", layout); });
  };
  EXPECT_EQ(error({.tensor = 2, .pipeline = 2}), "no error");
  EXPECT_THAT(error({.tensor = 3}), HasSubstr("the number of heads = 4 is not divisible by --tensor-parallel = 3"));
  EXPECT_THAT(error({.pipeline = 3}), HasSubstr("the number of layers = 2 is below --pipeline-parallel = 3"));
  EXPECT_THAT(error({.expert = 2}), HasSubstr("the model has no experts"));
  EXPECT_THAT(error({.data = 3}),
              HasSubstr("the number of rows of a batch = 2 is not divisible by the data-parallel ranks = 3"));
}

TEST(HfVerifyLayout, AsManyRanksAsTheExpertsNeed) {
  EXPECT_EQ((VerifyLayout{.expert = 2}).world_size(), 2);
  EXPECT_EQ((VerifyLayout{.tensor = 2, .expert = 2}).world_size(), 2);
  EXPECT_EQ((VerifyLayout{.tensor = 2, .pipeline = 2, .expert = 4}).world_size(), 8);
  EXPECT_EQ((VerifyLayout{.tensor = 2, .expert = 2, .expert_tensor = 2}).world_size(), 4);
  EXPECT_EQ((VerifyLayout{.pipeline = 2, .data = 3}).world_size(), 6);
}

}  // namespace
}  // namespace pharos::hf
