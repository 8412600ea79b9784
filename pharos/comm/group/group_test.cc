#include "pharos/comm/group.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "pharos/comm/testing.h"

namespace pharos::comm {
namespace {

struct Case {
  std::int64_t size;
  at::ScalarType type;
};

class Collectives : public ::testing::TestWithParam<Case> {};

TEST_P(Collectives, AllReduce) {
  const auto [size, type] = GetParam();
  testing::run_ranks(size, [&](World& world) {
    const double n = static_cast<double>(world.size());
    const double sum = n * (n + 1) / 2;
    const struct {
      ReduceOp op;
      double expected;
    } kOps[] = {{ReduceOp::kSum, sum}, {ReduceOp::kAverage, sum / n}, {ReduceOp::kMin, 1}, {ReduceOp::kMax, n}};
    for (const auto& [op, expected] : kOps) {
      auto tensor = at::full({3, 5}, static_cast<double>(world.rank() + 1), type);
      world.all().all_reduce(tensor, op, {"test"}).wait();
      EXPECT_TRUE(tensor.equal(at::full({3, 5}, expected, type))) << static_cast<int>(op) << tensor;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, Collectives,
                         ::testing::Values(Case{1, at::kFloat}, Case{2, at::kFloat}, Case{3, at::kFloat},
                                           Case{4, at::kFloat}, Case{2, at::kBFloat16}, Case{4, at::kBFloat16}));

}  // namespace
}  // namespace pharos::comm
