#include "pharos/lens/group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <set>

#include "pharos/base/error.h"

namespace pharos::lens {
namespace {

GroupMask preset(std::string_view name) { return parse_groups(name); }

TEST(Group, PresetsHaveTheSizesAndMembersOfTheSpecification) {
  EXPECT_EQ(format_groups(preset("default")), "job,checkpoint,evaluate,first_iteration,inference");
  EXPECT_EQ(std::popcount(preset("per_step")), 12);
  EXPECT_EQ(std::popcount(preset("profiling")), 16);
  EXPECT_EQ(preset("all"), preset("profiling"));
  EXPECT_EQ(preset("default") & preset("per_step"), preset("default"));
  EXPECT_EQ(format_groups(preset("all") & ~preset("per_step")), "microbatch,layer,activation_offload,trace_region");
}

TEST(Group, NamesAreDistinctAndParseBackToTheirBit) {
  std::set<std::string_view> names;
  for (int i = 0; i < kNumGroups; ++i) {
    const auto group = static_cast<Group>(i);
    names.insert(group_name(group));
    EXPECT_EQ(parse_groups(group_name(group)), group_bit(group));
  }
  EXPECT_EQ(names.size(), 16u);
  EXPECT_EQ(parse_groups("layer"), group_bit(Group::kLayer));
  EXPECT_EQ(parse_groups("inference"), GroupMask{1} << 15);
}

TEST(Group, Grammar) {
  struct Case {
    const char* specification;
    const char* groups;
  };
  const Case kCases[] = {{"", ""},
                         {" , ,", ""},
                         {"step", "step"},
                         {" Step ,\tJOB", "job,step"},
                         {"step,step,job,", "job,step"},
                         {"default,optimizer", "job,checkpoint,evaluate,optimizer,first_iteration,inference"}};
  for (const Case& item : kCases) {
    EXPECT_EQ(format_groups(parse_groups(item.specification)), item.groups) << item.specification;
  }
}

TEST(Group, UnknownNameIsNamedWithTheNearestAndAllValid) {
  try {
    parse_groups("job,optimiser", "telemetry.span_groups");
    FAIL() << "no error";
  } catch (const base::UserError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("Unknown span group \"optimiser\""));
    EXPECT_THAT(error.what(), testing::HasSubstr("Did you mean optimizer?"));
    EXPECT_THAT(error.what(), testing::HasSubstr("activation_offload, all, checkpoint"));
    EXPECT_EQ(error.parts().where, "telemetry.span_groups");
  }
  for (const char* bad : {"job step", "-job", "*", "steps"}) EXPECT_THROW(parse_groups(bad), base::UserError) << bad;
}

}  // namespace
}  // namespace pharos::lens
