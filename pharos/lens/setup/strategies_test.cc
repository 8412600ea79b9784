#include "pharos/lens/setup/strategies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pharos/base/error.h"

namespace pharos::lens {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Ranks that export.
std::vector<int> exporting(const LensConfig& config, int world_size, std::map<std::string, std::string> variables = {},
                           std::vector<std::string>* said = nullptr) {
  const MapEnvironment environment(std::move(variables));
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    std::vector<std::string> warnings;
    if (is_exporting_rank({config, rank, world_size, environment, warnings})) ranks.push_back(rank);
    if (said != nullptr) *said = warnings;
  }
  return ranks;
}

TEST(Strategies, BucketsAreNemoLensOnes) {
  const std::pair<int, int> kVectors[] = {
      {0, 7850}, {1, 8411},   {2, 9212},    {3, 883},     {4, 1900},  {5, 693},      {6, 412},   {7, 5555},
      {8, 3101}, {9, 8374},   {10, 1824},   {11, 2650},   {12, 8112}, {13, 4873},    {14, 6038}, {15, 7603},
      {31, 901}, {100, 1869}, {1000, 6517}, {2491, 9999}, {6393, 0},  {12345, 7915},
  };
  for (const auto& [rank, bucket] : kVectors) EXPECT_EQ(rank_bucket(rank), bucket) << rank;
}

TEST(Strategies, SampledPicksTheSameRanksAsNemoLens) {
  struct Case {
    double rate;
    int world_size;
    std::size_t num_ranks;
  };
  const Case kCases[] = {{0.01, 1024, 12}, {0.1, 1024, 115}, {0.5, 1024, 518}, {1.0, 16, 16}, {0.0, 16, 0}};
  for (const Case& c : kCases) {
    const LensConfig config{.export_strategy = "sampled", .export_sample_rate = c.rate};
    EXPECT_EQ(exporting(config, c.world_size).size(), c.num_ranks) << c.rate;
  }
  EXPECT_THAT(exporting({.export_strategy = "sampled", .export_sample_rate = 0.1}, 8), ElementsAre(3, 5, 6));
  EXPECT_THAT(exporting({.export_strategy = "sampled", .export_sample_rate = 0.25}, 8), ElementsAre(3, 4, 5, 6));
  EXPECT_FALSE(is_sampled_rank(2491, 0.9999));  // bucket 9999: the comparison is strict
  EXPECT_TRUE(is_sampled_rank(6393, 1e-9));     // bucket 0
}

TEST(Strategies, SampledThatPicksNobodySaysSo) {
  LensConfig config{.export_strategy = "sampled", .export_sample_rate = 0.01};
  std::vector<std::string> warnings;
  EXPECT_THAT(exporting(config, 8, {}, &warnings), IsEmpty());
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("picks none of 8 ranks")));

  config.sample_at_least_one = true;
  EXPECT_THAT(exporting(config, 8, {}, &warnings), ElementsAre(7));
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("the last one exports")));

  config.export_sample_rate = 0.1;  // the rate picks three; nothing is added
  EXPECT_THAT(exporting(config, 8, {}, &warnings), ElementsAre(3, 5, 6));
  EXPECT_THAT(warnings, IsEmpty());

  config.export_sample_rate = 0.0;  // nobody is what was asked for
  EXPECT_THAT(exporting(config, 8, {}, &warnings), IsEmpty());
  EXPECT_THAT(warnings, IsEmpty());
}

TEST(Strategies, SingleRank) {
  EXPECT_THAT(exporting({}, 4), ElementsAre(3));
  EXPECT_THAT(exporting({.export_rank = -7}, 4), ElementsAre(3));
  EXPECT_THAT(exporting({.export_rank = 0}, 4), ElementsAre(0));
  std::vector<std::string> warnings;
  EXPECT_THAT(exporting({.export_rank = 4}, 4, {}, &warnings), IsEmpty());
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("export_rank is 4")));
}

TEST(Strategies, AllRanks) { EXPECT_THAT(exporting({.export_strategy = "all_ranks"}, 3), ElementsAre(0, 1, 2)); }

TEST(Strategies, FirstRankPerNode) {
  struct Case {
    std::map<std::string, std::string> variables;
    bool is_exporting;
    std::size_t num_warnings;
  };
  const Case kCases[] = {
      {{}, true, 0},
      {{{"LOCAL_RANK", "0"}}, true, 0},
      {{{"LOCAL_RANK", " 0 "}}, true, 0},
      {{{"LOCAL_RANK", "3"}}, false, 0},
      {{{"LOCAL_RANK", "0"}, {"SLURM_LOCALID", "3"}}, true, 0},
      {{{"SLURM_LOCALID", "1"}}, false, 0},
      {{{"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}, false, 0},
      {{{"MPI_LOCALRANKID", "1"}}, false, 0},
      {{{"PMI_LOCAL_RANK", "1"}}, false, 0},
      {{{"PMI_LOCAL_RANK", "0"}}, true, 0},
      {{{"LOCAL_RANK", ""}, {"SLURM_LOCALID", "2"}}, false, 1},
      {{{"LOCAL_RANK", "first"}}, true, 1},
  };
  for (const Case& c : kCases) {
    std::vector<std::string> warnings;
    const auto ranks = exporting({.export_strategy = "first_rank_per_node"}, 1, c.variables, &warnings);
    EXPECT_EQ(ranks.size(), c.is_exporting ? 1u : 0u) << testing::PrintToString(c.variables);
    EXPECT_EQ(warnings.size(), c.num_warnings) << testing::PrintToString(c.variables);
  }
}

TEST(Strategies, RegistryTakesOwnRules) {
  EXPECT_THAT(registered_export_strategies(),
              ElementsAre("all_ranks", "first_rank_per_node", "sampled", "single_rank"));
  const auto is_even = [](const StrategyInput& input) { return input.rank % 2 == 0; };
  register_export_strategy("even", is_even);
  EXPECT_THAT(exporting({.export_strategy = "even"}, 5), ElementsAre(0, 2, 4));
  EXPECT_THROW(register_export_strategy("even", is_even), base::InternalError);
  EXPECT_THROW(register_export_strategy("", is_even), base::InternalError);
  EXPECT_THROW(register_export_strategy("all_ranks", is_even), base::InternalError);
  unregister_export_strategy("even");
  EXPECT_THROW(unregister_export_strategy("even"), base::InternalError);
  EXPECT_THROW(unregister_export_strategy("all_ranks"), base::InternalError);
}

TEST(Strategies, BuiltInsCanBeReplacedButNotRemoved) {
  const auto never = [](const StrategyInput&) { return false; };
  register_export_strategy("all_ranks", never, true);
  EXPECT_THAT(exporting({.export_strategy = "all_ranks"}, 2), IsEmpty());
  EXPECT_THROW(unregister_export_strategy("all_ranks"), base::InternalError);
  register_export_strategy(
      "all_ranks", [](const StrategyInput&) { return true; }, true);
  EXPECT_THAT(exporting({.export_strategy = "all_ranks"}, 2), ElementsAre(0, 1));
}

TEST(Strategies, UnknownNameIsAUserErrorEvenWhenDisabled) {
  try {
    exporting({.enabled = false, .export_strategy = "All_Ranks"}, 1);
    FAIL();
  } catch (const base::UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("Unknown export_strategy 'All_Ranks'"));
    EXPECT_THAT(error.what(), HasSubstr("Did you mean all_ranks?"));
    EXPECT_THAT(error.what(), HasSubstr("first_rank_per_node, sampled, single_rank"));
  }
}

}  // namespace
}  // namespace pharos::lens
