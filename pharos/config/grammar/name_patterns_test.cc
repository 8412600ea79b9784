#include "pharos/config/grammar/name_patterns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pharos/base/error.h"

namespace pharos::config {
namespace {

TEST(NamePatterns, StarStandsForAnyText) {
  struct Case {
    const char* pattern;
    const char* name;
    bool matches;
  };
  const Case cases[] = {
      {"a.b", "a.b", true},
      {"a.b", "a.bc", false},
      {"a.b", "xa.b", false},
      {"*", "", true},
      {"*", "decoder.layers.0.mlp", true},
      {"decoder.layers.1.*", "decoder.layers.1.mlp.gate.weight", true},
      {"decoder.layers.1.*", "decoder.layers.11.mlp.gate.weight", false},
      {"*.weight", "a.weight.weight", true},
      {"*.weight", "a.weight.bias", false},
      {"*.experts.*weight", "x.experts.gate.weight", true},
      {"a**b", "ab", true},
      {"*ab*ab", "abab", true},
      {"*ab*ab", "ab", false},
      {"", "a", false},
      {"a?", "ab", false},  // only * is special
  };
  for (const Case& tested : cases) {
    EXPECT_EQ(matches_pattern(tested.pattern, tested.name), tested.matches) << tested.pattern << " " << tested.name;
  }
}

TEST(NamePatterns, ScalesAreParsed) {
  const auto scales = parse_lr_scales({"*.router.*=0.5", "a=b=1e-2", "x=0"});
  ASSERT_EQ(scales.size(), 3u);
  EXPECT_EQ(scales[0].pattern, "*.router.*");
  EXPECT_EQ(scales[0].factor, 0.5);
  EXPECT_EQ(scales[1].pattern, "a=b");
  EXPECT_EQ(scales[1].factor, 0.01);
  EXPECT_EQ(scales[2].factor, 0);
  for (const char* text : {"a", "=1", "a=", "a=x", "a=1x", "a=-1", "a=nan", "a=inf", "", "a= 1"}) {
    try {
      parse_lr_scales({"b=1", text});
      ADD_FAILURE() << text;
    } catch (const base::UserError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(std::string("'") + text + "'"));
    }
  }
}

}  // namespace
}  // namespace pharos::config
