#include "pharos/config/overrides/override_parser.h"

#include <gmock/gmock.h>

#include "pharos/base/error.h"

namespace pharos::config {
namespace {

using testing::HasSubstr;

struct ValueCase {
  const char* text;
  const char* flow;  // value as canonical YAML flow text
};

TEST(OverrideParser, ReadsValues) {
  const ValueCase cases[] = {
      {"a.b=3", "3"},
      {"a=-1_000", "-1000"},
      {"a=007", "\"007\""},
      {"a=1e-4", "1e-4"},
      {"a=1e3", "1000.0"},
      {"a=.5", "0.5"},
      {"a=INF", "inf"},
      {"a=nan", "nan"},
      {"a=TRUE", "true"},
      {"a=Null", "null"},
      {"a=", "\"\""},
      {"a=\"123\"", "\"123\""},
      {"a='it\\'s'", "\"it's\""},
      {"a='c:\\dir\\\\'", "\"c:\\\\dir\\\\\""},
      {"a=path/to-x.y:z", "\"path/to-x.y:z\""},
      {"a=x\\ y\\,z", "\"x y,z\""},
      {"a=[1, 2,[x,'y z']]", "[1, 2, [x, \"y z\"]]"},
      {"a=[]", "[]"},
      {"a={x:1,y:{z:[null]}}", "{x: 1, y: {z: [null]}}"},
      {"a={}", "{}"},
      {"a=${model.hidden_size}", "\"${model.hidden_size}\""},
      {"a=int('3')", "3"},
      {"a=int(3.9)", "3"},
      {"a=float(2)", "2.0"},
      {"a=str([1,true])", "[\"1\", \"true\"]"},
      {"a=bool('false')", "false"},
      {"a=json_str({x:[1,null]})", "\"{\\\"x\\\":[1,null]}\""},
      {"a= 5 ", "5"},
      {"a=99999999999999999999", "1e+20"},
  };
  for (const ValueCase& test : cases) {
    const Override parsed = parse_override(test.text);
    ASSERT_TRUE(parsed.value.has_value()) << test.text;
    EXPECT_EQ(to_flow_text(*parsed.value), test.flow) << test.text;
  }
}

TEST(OverrideParser, ReadsOperationsAndPaths) {
  using Operation = Override::Operation;
  EXPECT_EQ(parse_override("a.b.0=1").path, (std::vector<std::string>{"a", "b", "0"}));
  EXPECT_EQ(parse_override("a=1").operation, Operation::kSet);
  EXPECT_EQ(parse_override("+a=1").operation, Operation::kAdd);
  EXPECT_EQ(parse_override("++a=1").operation, Operation::kForceAdd);
  EXPECT_EQ(parse_override("~a").operation, Operation::kDelete);
  EXPECT_FALSE(parse_override("~a").value.has_value());
  EXPECT_EQ(to_flow_text(*parse_override("~a=1").value), "1");
}

TEST(OverrideParser, RefusesWithTheReason) {
  const ValueCase cases[] = {
      {"a=1,2", "sweep"},       {"a=range(1,3)", "sweep"},      {"a=choice(a,b)", "sweep"},
      {"a=glob(*)", "sweep"},   {"a@b=1", "config group"},      {"a/b=1", "config group"},
      {"a", "no `=`"},          {"=1", "empty or malformed"},   {"a..b=1", "malformed"},
      {"1x.b=2", "malformed"},  {"a=[1,2", "not closed"},       {"a={x:1", "not closed"},
      {"a='x", "not closed"},   {"a=b c", "unexpected `c`"},    {"a=b=c", "unexpected `=`"},
      {"a={x:1,x:2}", "twice"}, {"a=int(x)", "cannot convert"}, {"a=foo(1)", "no function foo"},
      {"a=${x", "not closed"},  {"a=[1 2]", "expected `,`"},    {"a=)", "unexpected `)`"},
  };
  for (const ValueCase& test : cases) {
    try {
      parse_override(test.text);
      ADD_FAILURE() << test.text << " was accepted";
    } catch (const base::UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr(test.flow)) << test.text;
      EXPECT_THAT(error.what(), HasSubstr("column")) << test.text;
    }
  }
}

TEST(OverrideParser, BoundsRecursion) {
  EXPECT_THROW(parse_override("a=" + std::string(60000, '[')), base::UserError);
  EXPECT_THROW(parse_override("a=" + std::string(20000, '{')), base::UserError);
  std::string casts = "a=";
  for (int i = 0; i < 1000; ++i) casts += "int(";
  EXPECT_THROW(parse_override(casts), base::UserError);
}

TEST(Value, FlowTextOfEveryStringReadsBackByTheOverrideGrammar) {
  for (const char* text : {"x", "true", "1", "null", "a, b", "[x]", "it's", "", "1e5", "-", "~"}) {
    const std::string flow = to_flow_text(Value::of_string(text));
    EXPECT_EQ(parse_override("a=" + flow).value->text, text) << flow;
  }
}

}  // namespace
}  // namespace pharos::config
