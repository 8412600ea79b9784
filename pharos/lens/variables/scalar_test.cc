#include "pharos/lens/variables/scalar.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace pharos::lens {
namespace {

// Expected values are what Python's bool table, int() and float() say (lens.md section 1.3).
TEST(Scalar, Booleans) {
  for (const char* text : {"1", "true", "TRUE", "yes", "On", " on\t"}) EXPECT_EQ(parse_boolean(text), true) << text;
  for (const char* text : {"0", "false", "No", "OFF", "\nno "}) EXPECT_EQ(parse_boolean(text), false) << text;
  for (const char* text : {"", "2", "t", "maybe", "enabled", "truee", "1.0"}) {
    EXPECT_EQ(parse_boolean(text), std::nullopt) << text;
  }
}

TEST(Scalar, Integers) {
  struct Case {
    const char* text;
    std::optional<std::int64_t> value;
  };
  const Case kCases[] = {
      {"7", 7},
      {" +7\n", 7},
      {"-1", -1},
      {"1_000", 1000},
      {"007", 7},
      {"0_0", 0},
      {"", std::nullopt},
      {"last", std::nullopt},
      {"1.0", {}},
      {"0x1", {}},
      {"_1", {}},
      {"1_", {}},
      {"1__0", {}},
      {"- 1", {}},
      {"--1", {}},
      {"1 2", {}},
      {"-", {}},
      {"1e3", {}},
      {"+_1", {}},
      {"9223372036854775807", INT64_MAX},
      {"9223372036854775808", {}},
      {"-9223372036854775808", INT64_MIN},
  };
  for (const Case& c : kCases) EXPECT_EQ(parse_integer(c.text), c.value) << c.text;
}

TEST(Scalar, Numbers) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  struct Case {
    const char* text;
    std::optional<double> value;
  };
  const Case kCases[] = {
      {".5", 0.5},
      {"1e-1", 0.1},
      {" 0.25 ", 0.25},
      {"1.", 1.0},
      {"1.e1", 10.0},
      {"-2E+3", -2000.0},
      {"1_000.5_5", 1000.55},
      {"1e1_0", 1e10},
      {"inf", kInfinity},
      {"-Infinity", -kInfinity},
      {"+INF", kInfinity},
      {"1e400", kInfinity},
      {"1e-400", 0.0},
      {"", {}},
      {".", {}},
      {"1_.5", {}},
      {"1._5", {}},
      {"_1", {}},
      {"1e", {}},
      {"1e+", {}},
      {"0x1p3", {}},
      {"1,5", {}},
      {"half", {}},
      {"1.5.2", {}},
      {"nan(1)", {}},
      {".e1", {}},
      {"1e_1", {}},
  };
  for (const Case& c : kCases) EXPECT_EQ(parse_number(c.text), c.value) << c.text;
  EXPECT_TRUE(std::isnan(parse_number("NaN").value()));
}

TEST(Scalar, PercentDecoding) {
  struct Case {
    const char* text;
    const char* value;
  };
  const Case kCases[] = {
      {"plain", "plain"}, {"a%20b", "a b"}, {"%2C%3d", ",="},       {"100%", "100%"},        {"%2", "%2"},
      {"%zz", "%zz"},     {"%%41", "%A"},   {"%C3%A9", "\xc3\xa9"}, {"%ff", "\xef\xbf\xbd"}, {"a+b", "a+b"},
  };
  for (const Case& c : kCases) EXPECT_EQ(decode_percent(c.text), c.value) << c.text;
}

TEST(Scalar, Utf8IsMadeValid) {
  EXPECT_EQ(make_valid_utf8("\xf0\x9f\x98\x80 ok"), "\xf0\x9f\x98\x80 ok");
  const std::string replacement = "\xef\xbf\xbd";
  EXPECT_EQ(make_valid_utf8("\xc0\xaf"), replacement + replacement);                    // overlong
  EXPECT_EQ(make_valid_utf8("\xed\xa0\x80"), replacement + replacement + replacement);  // surrogate
  EXPECT_EQ(make_valid_utf8("a\xe2"), "a" + replacement);                               // cut off
  EXPECT_EQ(make_valid_utf8("\xf5"), replacement);
}

TEST(Scalar, MessagesShowValuesOnOneShortLine) {
  EXPECT_EQ(shown("a\x1b[2J\nb\xff"), "a?[2J?b\xef\xbf\xbd");
  EXPECT_EQ(shown(std::string(100, 'x')), std::string(100, 'x'));
  EXPECT_EQ(shown(std::string(101, 'x')), std::string(100, 'x') + "…");
  EXPECT_EQ(shown(std::string(98, 'x') + "語語"), std::string(98, 'x') + "…");
  EXPECT_EQ(shown(std::string(5000, '\x80')).size(), 96u * 3 + std::string("…").size());
}

}  // namespace
}  // namespace pharos::lens
