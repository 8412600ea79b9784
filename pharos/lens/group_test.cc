#include "pharos/lens/group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdio>
#include <cstdlib>
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

/// Groups stay registered for the life of the process, so this one runs in a process of its own.
TEST(GroupDeathTest, RegisteredGroupsAreGroupsLikeOthers) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto check = [](bool condition, int line) {
    if (condition) return;
    std::fprintf(stderr, "line %d does not hold", line);
    std::_Exit(1);
  };
  EXPECT_EXIT(
      {
        const Group rollout = register_group("rollout", {"per_step"});
        const Group server = register_group("server", {"default"});
        const Group verify = register_group("verify_2");
        check(static_cast<int>(rollout) == 16 && static_cast<int>(server) == 17, __LINE__);
        check(register_group("rollout") == rollout && register_group("step") == Group::kStep, __LINE__);
        check(group_name(verify) == "verify_2" && find_group("server") == server, __LINE__);
        check(parse_groups("rollout, VERIFY_2") == (group_bit(rollout) | group_bit(verify)), __LINE__);
        check(format_groups(parse_groups("job,server")) == "job,server", __LINE__);
        check((preset("default") & (GroupMask{7} << 16)) == group_bit(server), __LINE__);
        check((preset("per_step") & (GroupMask{7} << 16)) == (group_bit(server) | group_bit(rollout)), __LINE__);
        check(preset("all") == (GroupMask{1} << 19) - 1 && preset("all") == preset("profiling"), __LINE__);
        try {
          parse_groups("rolout");
        } catch (const base::UserError& error) {
          check(std::string(error.what()).find("Did you mean rollout?") != std::string::npos, __LINE__);
          check(std::string(error.what()).find("server, step") != std::string::npos, __LINE__);
        }
        for (int i = 3; i < 47; ++i) register_group(std::string("group_").append(std::to_string(i)));
        check(parse_groups("group_46") == GroupMask{1} << 62, __LINE__);
        try {
          register_group("one_too_many");
        } catch (const base::InternalError&) {
          std::_Exit(0);
        }
        check(false, __LINE__);
      },
      testing::ExitedWithCode(0), "");
}

TEST(Group, NamesAndPresetsThatCannotBeRegistered) {
  for (const char* bad : {"", "Rollout", "roll out", "_x", "9x", "a,b", "ä", "default", "all", "profiling"}) {
    EXPECT_THROW(register_group(bad), base::InternalError) << bad;
  }
  EXPECT_THROW(register_group("fine", {"weekly"}), base::InternalError);
  EXPECT_FALSE(find_group("fine"));
}

TEST(Group, LookUpByName) {
  EXPECT_EQ(find_group("layer"), Group::kLayer);
  for (const char* bad : {"", "Layer", " layer", "all"}) EXPECT_FALSE(find_group(bad)) << bad;
  EXPECT_EQ(group_name(static_cast<Group>(62)), "unknown");
}

}  // namespace
}  // namespace pharos::lens
