#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "pharos/base/error.h"
#include "pharos/optim/clip.h"
#include "pharos/optim/gradient_buffer.h"
#include "pharos/optim/test_parameters.h"

namespace pharos::optim {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(GradientBuffer, LaysOutLastParameterFirst) {
  const TestParameters parameters({{3, 5}, {65}, {2, 2, 2}});
  const GradientBuffer buffer(parameters.all());
  EXPECT_THAT(buffer.layout().offsets, ElementsAre(64 + 128, 64, 0));
  EXPECT_EQ(buffer.layout().num_elements, 64 + 128 + 64);
  EXPECT_EQ(buffer.num_elements(), 15 + 65 + 8);
  ASSERT_EQ(buffer.buckets().size(), 1u);
  EXPECT_THAT(buffer.buckets()[0].parameters, ElementsAre(2, 1, 0));
}

TEST(GradientBuffer, MainGradsAreViewsOfTheirShape) {
  const TestParameters parameters({{3, 5}, {65}, {2, 2, 2}}, at::kBFloat16);
  GradientBuffer buffer(parameters.all());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& gradient = parameters[i].main_grad;
    EXPECT_EQ(gradient.sizes(), parameters[i].data.sizes());
    EXPECT_EQ(gradient.scalar_type(), at::kFloat);
    EXPECT_TRUE(gradient.is_contiguous());
    EXPECT_FALSE(gradient.requires_grad());
    EXPECT_EQ(gradient.storage_offset(), buffer.layout().offsets[i]);
    EXPECT_EQ(gradient.count_nonzero().item<int>(), 0);
    gradient.fill_(static_cast<double>(i + 1));
  }
  EXPECT_EQ(buffer.flat().sum().item<double>(), 15 * 1 + 65 * 2 + 8 * 3);
  buffer.zero();
  EXPECT_EQ(parameters[1].main_grad.abs().sum().item<double>(), 0);
}

TEST(GradientBuffer, BucketsAreContiguousAndCoverTheBuffer) {
  const TestParameters parameters({{64}, {100}, {256}, {64}, {64}});
  const GradientBuffer buffer(parameters.all(), 128);
  std::vector<std::vector<std::size_t>> members;
  std::int64_t end = 0;
  for (const Bucket& bucket : buffer.buckets()) {
    EXPECT_EQ(bucket.begin, end);
    EXPECT_EQ(bucket.begin % kFlatAlignment, 0);
    EXPECT_EQ(buffer.bucket_view(bucket).numel(), bucket.end - bucket.begin);
    end = bucket.end;
    members.push_back(bucket.parameters);
  }
  EXPECT_EQ(end, buffer.layout().num_elements);
  EXPECT_THAT(members, ElementsAre(ElementsAre(4, 3), ElementsAre(2), ElementsAre(1), ElementsAre(0)));
}

TEST(GradientBuffer, NamesNonFiniteParameters) {
  const TestParameters parameters({{4}, {4}, {4}});
  const GradientBuffer buffer(parameters.all());
  EXPECT_THAT(buffer.non_finite_parameters(), IsEmpty());
  parameters[2].main_grad[1] = std::numeric_limits<float>::infinity();
  parameters[0].main_grad[3] = std::nanf("");
  EXPECT_THAT(buffer.non_finite_parameters(), ElementsAre("weight_0", "weight_2"));
}

TEST(GradientBuffer, RefusesParametersWithoutData) {
  tensor::Parameter parameter;
  EXPECT_THROW(GradientBuffer({&parameter}), base::InternalError);
  parameter.data = at::empty({2}, at::TensorOptions().device(at::kMeta));
  EXPECT_THROW(GradientBuffer({&parameter}), base::InternalError);
}

// |sum - double sum| ≤ 1e-6 relative, for lengths around the block size.
TEST(Norm, EqualsDoublePrecision) {
  at::manual_seed(5);
  for (const std::int64_t length : {1L, 100L, kNormBlock - 1, kNormBlock, kNormBlock + 1, 37 * kNormBlock + 17}) {
    const at::Tensor flat = at::randn({length}) * 1e-3;
    const double expected = flat.to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(sum_of_squares(flat), expected, 1e-6 * expected) << length;
  }
  EXPECT_EQ(sum_of_squares(at::zeros({5000})), 0);
}

TEST(Norm, DoesNotDependOnThreads) {
  const at::Tensor flat = at::randn({3'000'001});
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const double one = sum_of_squares(flat);
  at::set_num_threads(4);
  const double four = sum_of_squares(flat);
  at::set_num_threads(before);
  EXPECT_EQ(one, four);
}

TEST(Norm, IsFiniteExactlyWhenEveryElementIs) {
  at::Tensor flat = at::full({2 * kNormBlock + 3}, 1e30f);  // squares overflow fp32
  EXPECT_NEAR(sum_of_squares(flat) / (static_cast<double>(flat.numel()) * 1e60), 1, 1e-6);
  for (const float bad :
       {std::nanf(""), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (const std::int64_t place : {std::int64_t{0}, flat.numel() - 1}) {
      at::Tensor broken = flat.clone();
      broken[place] = bad;
      EXPECT_FALSE(std::isfinite(sum_of_squares(broken)));
    }
  }
}

TEST(Clip, CoefficientIsAtMostOne) {
  struct Case {
    double norm, max_norm, expected;
  };
  for (const Case& c : {Case{0.5, 1, 1},
                        {1, 1, 1 / (1 + 1e-6)},
                        {4, 1, 1 / (4 + 1e-6)},
                        {4, 0, 1},
                        {0, 1, 1},
                        {10, 2.5, 2.5 / (10 + 1e-6)}}) {
    EXPECT_EQ(clip_coefficient(c.norm, c.max_norm), c.expected) << c.norm;
  }
}

}  // namespace
}  // namespace pharos::optim
