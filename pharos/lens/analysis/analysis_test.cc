// What trace show computes: spans added up by path and by name, with whatever a damaged ring may hold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "pharos/lens/analysis/span_totals.h"
#include "pharos/lens/analysis/span_tree.h"

namespace pharos::lens {
namespace {

SpanData make_span(std::uint64_t id, std::uint64_t parent, const std::string& name, std::int64_t start_ns,
                   std::int64_t end_ns) {
  SpanData span;
  span.context.span_id = id;
  span.parent_span_id = parent;
  span.name = name;
  span.start_ns = start_ns;
  span.end_ns = end_ns;
  return span;
}

/// "a:2 a/b:3" – path and number of spans of every node in print order.
std::string describe(const SpanTree& tree, std::size_t max_depth = 0) {
  std::string text;
  for (const std::size_t at : tree.in_print_order(max_depth)) {
    std::string path;
    for (std::size_t node = at; node != 0; node = tree.nodes[node].parent) {
      path = tree.nodes[node].name + (path.empty() ? "" : "/") + path;
    }
    if (!text.empty()) text += ' ';
    text += path + ":" + std::to_string(tree.nodes[at].count + tree.nodes[at].num_unfinished);
  }
  return text;
}

struct TreeCase {
  const char* name;
  std::vector<SpanData> spans;
  std::vector<SpanData> open_spans;
  const char* expected;
};

class SpanTreeShapes : public testing::TestWithParam<TreeCase> {};

TEST_P(SpanTreeShapes, AddsUpByPath) {
  EXPECT_EQ(describe(build_span_tree(GetParam().spans, GetParam().open_spans)), GetParam().expected);
}

INSTANTIATE_TEST_SUITE_P(
    SpanTree, SpanTreeShapes,
    testing::Values(TreeCase{"NoSpans", {}, {}, ""}, TreeCase{"OneSpan", {make_span(1, 0, "a", 10, 20)}, {}, "a:1"},
                    TreeCase{"SameNameUnderTwoParents",
                             {make_span(3, 1, "x", 11, 12), make_span(1, 0, "a", 10, 40), make_span(4, 2, "x", 51, 52),
                              make_span(2, 0, "b", 50, 60)},
                             {},
                             "a:1 a/x:1 b:1 b/x:1"},
                    TreeCase{"SiblingsLongestFirst",
                             {make_span(2, 1, "short", 1, 2), make_span(3, 1, "long", 3, 9),
                              make_span(4, 1, "short", 10, 11), make_span(1, 0, "a", 0, 20)},
                             {},
                             "a:1 a/long:1 a/short:2"},
                    TreeCase{"MissingParent", {make_span(2, 77, "x", 1, 2)}, {}, "x:1"},
                    TreeCase{"OpenParent", {make_span(2, 1, "x", 1, 2)}, {make_span(1, 0, "a", 0, 0)}, "a:1 a/x:1"},
                    TreeCase{"OwnParent", {make_span(1, 1, "a", 0, 5), make_span(2, 1, "x", 1, 2)}, {}, "a:1 a/x:1"},
                    TreeCase{"CycleOfTwo", {make_span(1, 2, "a", 0, 5), make_span(2, 1, "b", 0, 5)}, {}, "b:1 b/a:1"},
                    TreeCase{"TailIntoACycle",
                             {make_span(3, 1, "tail", 0, 1), make_span(1, 2, "a", 0, 5), make_span(2, 1, "b", 0, 5)},
                             {},
                             "b:1 b/a:1 b/a/tail:1"},
                    TreeCase{
                        "TwoSpansOfOneId", {make_span(1, 0, "a", 0, 5), make_span(1, 1, "b", 0, 5)}, {}, "a:1 a/b:1"}),
    [](const auto& info) { return info.param.name; });

TEST(SpanTree, TimesAndShares) {
  const SpanTree tree = build_span_tree(
      {make_span(2, 1, "x", 100, 200), make_span(3, 1, "x", 300, 500), make_span(1, 0, "a", 0, 1000)}, {});
  const std::vector<std::size_t> order = tree.in_print_order();
  ASSERT_EQ(order.size(), 2u);
  const SpanTreeNode& child = tree.nodes[order[1]];
  EXPECT_EQ(child.count, 2u);
  EXPECT_EQ(child.total_ns, 300);
  EXPECT_DOUBLE_EQ(child.mean_ns(), 150);
  EXPECT_DOUBLE_EQ(tree.share_of_parent(order[1]), 0.3);
  EXPECT_LT(tree.share_of_parent(order[0]), 0);
  EXPECT_EQ(tree.nodes[0].total_ns, 1000);
  EXPECT_EQ(tree.first_ns, 0);
  EXPECT_EQ(tree.last_ns, 1000);
}

TEST(SpanTree, OpenSpansReachToTheLastThingRecorded) {
  const SpanTree tree = build_span_tree({make_span(2, 1, "x", 100, 400)}, {make_span(1, 0, "a", 50, 0)});
  const std::vector<std::size_t> order = tree.in_print_order();
  const SpanTreeNode& open = tree.nodes[order[0]];
  EXPECT_EQ(open.count, 0u);
  EXPECT_EQ(open.num_unfinished, 1u);
  EXPECT_EQ(open.total_ns, 350);
  EXPECT_DOUBLE_EQ(tree.share_of_parent(order[1]), 300.0 / 350.0);
}

TEST(SpanTree, DepthCanBeLimited) {
  const SpanTree tree =
      build_span_tree({make_span(1, 0, "a", 0, 9), make_span(2, 1, "b", 1, 8), make_span(3, 2, "c", 2, 7)}, {});
  EXPECT_EQ(describe(tree, 1), "a:1");
  EXPECT_EQ(describe(tree, 2), "a:1 a/b:1");
  EXPECT_EQ(describe(tree, 0), "a:1 a/b:1 a/b/c:1");
}

TEST(SpanTree, AVeryLongChainIsHarmless) {
  std::vector<SpanData> chain;
  constexpr std::uint64_t kLength = 200000;
  for (std::uint64_t id = 1; id <= kLength; ++id) chain.push_back(make_span(id, id - 1, "a", 0, 10));
  EXPECT_EQ(build_span_tree(chain, {}).in_print_order().size(), kLength);
  for (SpanData& span : chain) span.parent_span_id = span.context.span_id % kLength + 1;  // one cycle of all
  const SpanTree cycle = build_span_tree(chain, {});
  EXPECT_EQ(cycle.in_print_order().size(), kLength);
  EXPECT_EQ(cycle.nodes[0].children.size(), 1u);
}

TEST(SpanTree, PathsOfOpenSpans) {
  EXPECT_THAT(
      paths_of_open_spans({}, {make_span(1, 0, "a", 0, 0), make_span(2, 1, "b", 1, 0), make_span(3, 9, "c", 2, 0)}),
      testing::ElementsAre(testing::ElementsAre("a"), testing::ElementsAre("a", "b"), testing::ElementsAre("c")));
  EXPECT_THAT(paths_of_open_spans({make_span(1, 0, "a", 0, 5)}, {}), testing::IsEmpty());
}

TEST(NearestRank, IsAMemberOfTheList) {
  struct Case {
    int count, percent;
    std::int64_t expected;
  };
  for (const Case& test : {Case{1, 50, 1},
                           {1, 99, 1},
                           {2, 50, 1},
                           {3, 50, 2},
                           {4, 50, 2},
                           {99, 99, 99},
                           {100, 99, 99},
                           {101, 99, 100},
                           {200, 99, 198},
                           {200, 100, 200},
                           {0, 50, 0}}) {
    std::vector<std::int64_t> sorted(static_cast<std::size_t>(test.count));
    std::iota(sorted.begin(), sorted.end(), 1);
    EXPECT_EQ(nearest_rank(sorted, test.percent), test.expected) << test.count << " values, p" << test.percent;
  }
}

TEST(SpanTotals, ByNameWithShareOfStep) {
  std::vector<SpanData> spans;
  for (std::int64_t i = 0; i < 4; ++i) {
    spans.push_back(make_span(10 + i, 1, std::string(kStepSpan), i * 100, i * 100 + 50));
    spans.push_back(make_span(20 + i, 10 + i, "optimizer", i * 100, i * 100 + 10 + i));
  }
  spans.push_back(make_span(2, 0, "startup", 0, 1000));
  const std::vector<SpanTotals> totals = total_by_name(spans, {make_span(1, 0, "train", 0, 0)});
  ASSERT_EQ(totals.size(), 4u);
  EXPECT_EQ(totals[0].name, "startup");
  EXPECT_DOUBLE_EQ(totals[0].share_of_step.value(), 5.0);
  EXPECT_EQ(totals[1].name, kStepSpan);
  EXPECT_DOUBLE_EQ(totals[1].share_of_step.value(), 1.0);
  EXPECT_EQ(totals[2].name, "optimizer");
  EXPECT_EQ(totals[2].count, 4u);
  EXPECT_EQ(totals[2].total_ns, 46);
  EXPECT_DOUBLE_EQ(totals[2].mean_ns, 11.5);
  EXPECT_EQ(totals[2].p50_ns, 11);
  EXPECT_EQ(totals[2].p99_ns, 13);
  EXPECT_DOUBLE_EQ(totals[2].share_of_step.value(), 0.23);
  EXPECT_EQ(totals[3].name, "train");
  EXPECT_EQ(totals[3].count, 0u);
  EXPECT_EQ(totals[3].num_unfinished, 1u);
  EXPECT_EQ(totals[3].total_ns, 0);
}

TEST(SpanTotals, WithoutStepsThereIsNoShare) {
  EXPECT_THAT(total_by_name({}, {}), testing::IsEmpty());
  const std::vector<SpanTotals> totals = total_by_name({make_span(1, 0, "a", 5, 3)}, {});
  ASSERT_EQ(totals.size(), 1u);
  EXPECT_EQ(totals[0].total_ns, 0);  // a clock that went backwards is no time at all
  EXPECT_FALSE(totals[0].share_of_step.has_value());
}

TEST(SpanTotals, SpansEndedByTheShutdownAreOnlyCounted) {
  SpanData cut = make_span(1, 0, "a", 0, 1000);
  cut.attributes.emplace_back("nemo.span.truncated", true);
  const std::vector<SpanTotals> totals = total_by_name({cut, make_span(2, 0, "a", 0, 10)}, {});
  ASSERT_EQ(totals.size(), 1u);
  EXPECT_EQ(totals[0].count, 1u);
  EXPECT_EQ(totals[0].num_unfinished, 1u);
  EXPECT_EQ(totals[0].total_ns, 10);
}

}  // namespace
}  // namespace pharos::lens
