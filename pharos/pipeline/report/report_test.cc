#include "pharos/pipeline/report/report.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/pipeline/report/measured_file.h"
#include "pharos/pipeline/report/render_report.h"
#include "pharos/pipeline/report/test_measured.h"

namespace pharos::pipeline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

int num_stages(const Schedule& schedule) { return schedule.num_ranks * schedule.num_chunks; }

void expect_sum(const BubbleParts& parts) {
  EXPECT_NEAR(parts.schedule + parts.imbalance + parts.transfers + parts.other, parts.measured, 1e-12);
}

// What was put in comes out, for every schedule, with stages and transfers that cost nothing extra and that do.
TEST(BubbleReport, GivesBackTheParts) {
  for (const Schedule& schedule : one_of_each()) {
    const int stages = num_stages(schedule);
    StageCosts equal = uneven_costs(stages, 0);
    for (auto* phase : {&equal.forward, &equal.backward, &equal.weight})
      std::fill(phase->begin(), phase->end(), std::accumulate(phase->begin(), phase->end(), 0.0) / stages);
    const double planned = simulate(schedule, equal).bubble;
    const double uneven = simulate(schedule, uneven_costs(stages, 0)).bubble;
    const Timeline real = simulate(schedule, uneven_costs(stages, 3));
    const BubbleReport report = make_report(measured_of(real));
    EXPECT_NEAR(report.bubble.measured, real.bubble, 1e-9) << schedule.name;
    EXPECT_NEAR(report.bubble.schedule, planned, 1e-9) << schedule.name;
    EXPECT_NEAR(report.bubble.imbalance, uneven - planned, 1e-9) << schedule.name;
    EXPECT_NEAR(report.bubble.transfers, real.bubble - uneven, 1e-9) << schedule.name;
    EXPECT_NEAR(report.bubble.other, 0, 1e-9) << schedule.name;
    expect_sum(report.bubble);
    double idle = 0;
    for (std::size_t rank = 0; rank < report.ranks.size(); ++rank) {
      const RankReport& line = report.ranks[rank];
      expect_sum(line.bubble);
      EXPECT_NEAR(line.bubble.measured, real.ranks[rank].bubble, 1e-9);
      EXPECT_NEAR(line.bubble.other, 0, 1e-9);
      EXPECT_NEAR(line.busy + std::accumulate(line.idle.begin(), line.idle.end(), 0.0), report.span, 1e-6);
      idle += line.bubble.measured;
    }
    EXPECT_NEAR(idle / schedule.num_ranks, report.bubble.measured, 1e-12);
  }
}

// A single late action is "other": it changes no median. The last action of rank 0 takes 30 ms more.
TEST(BubbleReport, JitterIsOther) {
  const Schedule schedule = one_forward_one_backward(3, 8);
  const Timeline planned = simulate(schedule, even_costs(3, 10, 10, 10, 0));
  auto steps = measured_of(planned);
  steps[0].actions.back().end_ns += test_ns(30);
  const BubbleReport report = make_report(steps);
  const double busy = 3 * 8 * 30 + 30, span = planned.span + 30;
  EXPECT_NEAR(report.bubble.measured, (3 * span - busy) / (3 * span), 1e-9);
  EXPECT_NEAR(report.bubble.schedule, planned.bubble, 1e-9);
  EXPECT_NEAR(report.bubble.imbalance, 0, 1e-9);
  EXPECT_NEAR(report.bubble.transfers, 0, 1e-9);
  EXPECT_NEAR(report.bubble.other, (3 * span - busy) / (3 * span) - planned.bubble, 1e-9);
}

TEST(BubbleReport, DoesNotDependOnClocks) {
  for (const Schedule& schedule : one_of_each()) {
    const Timeline real = simulate(schedule, uneven_costs(num_stages(schedule), 3));
    const BubbleReport expected = make_report(measured_of(real));
    const BubbleReport report = make_report(measured_of(real, 1, {0, 900, -4000}));
    EXPECT_NEAR(report.bubble.schedule, expected.bubble.schedule, 1e-9);
    EXPECT_NEAR(report.bubble.imbalance, expected.bubble.imbalance, 1e-9);
    // What is uncertain is where between its bounds a clock is: a few milliseconds of a span of about 300.
    EXPECT_NEAR(report.bubble.measured, expected.bubble.measured, 0.03) << schedule.name;
  }
}

TEST(BubbleReport, AveragesSteps) {
  const Schedule schedule = one_forward_one_backward(2, 4);
  std::vector<MeasuredStep> steps;
  const double factors[] = {9, 1, 2, 3};
  double bubble = 0;
  for (std::int64_t step = 1; step <= 4; ++step) {
    Timeline timeline = simulate(schedule, even_costs(2, 10, 10, 10));
    if (step > 1)
      timeline.ranks[1].actions.back().end += factors[step - 1];  // before rank 0's last, which waits for it
    for (const MeasuredStep& measured : measured_of(timeline, step)) steps.push_back(measured);
    if (step > 1) bubble += make_report(steps, {.step = step}).bubble.measured / 3;
  }
  const BubbleReport report = make_report(steps);
  ASSERT_EQ(report.steps.size(), 3U);
  EXPECT_EQ(report.steps[0].step, 2);
  EXPECT_EQ(report.measured.step, 3);  // the median span
  EXPECT_THAT(report.warnings, IsEmpty());
  EXPECT_NEAR(report.bubble.measured, bubble, 1e-12);
  EXPECT_EQ(make_report(steps, {.step = 1}).steps.size(), 1U);
}

const Proposal& first_proposal(const BubbleReport& report) {
  static const Proposal kNone;
  return report.advice.proposals.empty() ? kNone : report.advice.proposals.front();
}

TEST(BubbleReport, NamesTheLargestPartAndWhatHelps) {
  StageCosts costs = even_costs(4, 10, 10, 10, 0.001);
  for (auto* phase : {&costs.forward, &costs.backward, &costs.weight}) phase->back() += 10;
  const auto steps = measured_of(simulate(one_forward_one_backward(4, 32), costs));
  const BubbleReport report = make_report(steps, {.layers = {2, 2, 2, 2}});
  EXPECT_EQ(report.slowest_stage, 3);
  EXPECT_THAT(report.advice.cause, HasSubstr("imbalance, "));
  EXPECT_THAT(report.advice.cause, HasSubstr("rank 3 is the busiest, stage 3 takes 1.60 x the mean stage"));
  ASSERT_TRUE(report.split.has_value());
  EXPECT_EQ(first_proposal(report).arguments, report.split->arguments);
  EXPECT_THAT(first_proposal(make_report(steps)).text, HasSubstr("equal stages: up to"));
  EXPECT_FALSE(make_report(steps).split.has_value());
  EXPECT_TRUE(make_report(steps, {.layers = {1, 2}}).layers.empty());
  // Equal stages and few microbatches: the schedule is what costs.
  const auto even = make_report(measured_of(simulate(gpipe(4, 8), even_costs(4, 10, 10, 10))));
  EXPECT_THAT(even.advice.cause, HasSubstr("the schedule gpipe itself, 27.3 % of the step"));
  EXPECT_THAT(first_proposal(even).text, HasSubstr("zbv: "));
  EXPECT_THAT(first_proposal(even).text, HasSubstr("peak 4 rank shares instead of 8"));
  // One rank has no bubble.
  const auto one = make_report(measured_of(simulate(gpipe(1, 4), even_costs(1, 10, 10, 10))));
  EXPECT_THAT(one.advice.cause, HasSubstr("none, no part is 1 %"));
  EXPECT_THAT(one.advice.proposals, IsEmpty());
  // Transfers that take longer than the stages.
  const auto slow = make_report(measured_of(simulate(zero_bubble_v(3, 8), even_costs(6, 10, 10, 10, 100))));
  EXPECT_THAT(slow.advice.cause, HasSubstr("transfers, "));
  EXPECT_THAT(slow.advice.cause, HasSubstr("takes 100 ms"));
  EXPECT_THAT(first_proposal(slow).text, HasSubstr("faster transfers"));
}

// Two layers against six: the split comes first, and what is then said of a schedule is said of that split and can be
// pasted.
TEST(BubbleReport, AdviceCanBeDone) {
  StageCosts costs = even_costs(2, 10, 14, 6, 0.01);
  for (auto* phase : {&costs.forward, &costs.backward, &costs.weight}) phase->back() *= 3;
  const auto steps = measured_of(simulate(one_forward_one_backward(2, 8), costs));
  const BubbleReport report = make_report(steps, {.layers = {2, 6}});
  EXPECT_THAT(report.advice.cause, HasSubstr("stage 1 has 6 of 8 layers"));
  ASSERT_EQ(report.advice.proposals.size(), 2U);
  const Proposal &first = report.advice.proposals[0], &then = report.advice.proposals[1];
  EXPECT_EQ(first.arguments, "'model.pipeline_model_parallel_layout=\"Et*4|t*4L\"'");
  EXPECT_NEAR(first.before, report.predicted.span, 1e-9);
  EXPECT_EQ(then.before, first.after);
  EXPECT_LT(then.after, then.before);
  EXPECT_THAT(then.arguments, HasSubstr("model.pipeline_schedule="));
  EXPECT_THAT(then.arguments, HasSubstr(" 'model.pipeline_model_parallel_layout=\"Et*2|t*2|t*2|t*2L\"'"));
  const std::string text = report_text(report);
  EXPECT_THAT(text, HasSubstr("\nfirst: another split: "));
  EXPECT_THAT(text, HasSubstr("\nthen: " + then.text + ": " + then.arguments + "\n"));
}

// The percentage of the advice is that of the table.
TEST(BubbleReport, AdviceAndTableAgree) {
  auto steps = measured_of(simulate(gpipe(4, 8), even_costs(4, 100, 120, 90, 1)));
  steps[0].actions.back().end_ns += test_ns(300);  // unexplained: no forecast has it
  const BubbleReport report = make_report(steps, {.layers = {2, 2, 2, 2}});
  const Alternative& best = report.schedules.front();
  const double change = 100 * (best.span / report.predicted.span - 1);
  const Proposal& first = first_proposal(report);
  EXPECT_EQ(first.arguments, best.arguments);
  EXPECT_THAT(first.text, HasSubstr(fmt::format("{:.1f} % shorter ({:.0f} -> {:.0f} ms, both simulated)", -change,
                                                report.predicted.span, best.span)));
  EXPECT_THAT(report_text(report), HasSubstr(fmt::format("{:.0f} {:+7.1f}% ", best.span, change)));
}

// Every fifth time of 10 ms takes 100: the ranks are busy then, so that no part of the bubble shows it.
TEST(BubbleReport, DoubtsUnsteadyTimes) {
  Timeline timeline = simulate(one_forward_one_backward(2, 9), even_costs(2, 10, 10, 10));
  auto steps = measured_of(timeline);
  const BubbleReport steady = make_report(steps, {.layers = {2, 6}});
  EXPECT_FALSE(steady.is_noisy);
  EXPECT_THAT(steady.warnings, ElementsAre("only 1 step was averaged"));
  EXPECT_THAT(make_report(steps, {.step = 1}).warnings, IsEmpty());
  const auto stretch = [](double time) { return time + 90 * std::floor((time + 1e-6) / 50); };
  for (RankTimeline& line : timeline.ranks) {
    for (TimedAction& timed : line.actions)
      timed = {timed.action, timed.stage, stretch(timed.start), stretch(timed.end)};
  }
  steps = measured_of(timeline);
  const BubbleReport report = make_report(steps, {.layers = {2, 6}});
  EXPECT_TRUE(report.is_noisy);
  EXPECT_THAT(report.warnings.front(), HasSubstr("do not trust the forecasts"));
  EXPECT_FALSE(report.split.has_value());
  EXPECT_GT(report.time.unexplained, 0.2 * report.span);
  EXPECT_THAT(report.advice.cause, HasSubstr("unexplained"));
  ASSERT_EQ(report.advice.proposals.size(), 1U);
  EXPECT_THAT(first_proposal(report).text, HasSubstr("steadier actions"));
  const std::string text = report_text(report);
  EXPECT_THAT(text, HasSubstr("\nwarning: the step took +"));
  EXPECT_THAT(text, HasSubstr("not looked for, the times are too unsteady"));
}

// "a = b word +c word ..": a less the others, in units of the last digit.
double left_over(const std::string& line) {
  double sum = 0, sign = 1;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    if (word == "=") sign = -1;
    char* end = nullptr;
    const double number = std::strtod(word.c_str(), &end);
    if (end != word.c_str() && *end == 0) sum += sign * number;
  }
  return sum;
}

TEST(BubbleReport, PrintedPartsAddUp) {
  for (const Schedule& schedule : one_of_each()) {
    for (const double transfer : {0.013, 0.37, 3.1, 9.77}) {
      const auto report = make_report(measured_of(simulate(schedule, uneven_costs(num_stages(schedule), transfer))));
      const TimeParts& time = report.time;
      EXPECT_NEAR(time.work + time.schedule + time.imbalance + time.transfers + time.unexplained, report.span, 1e-9);
      for (const std::string& line : {report_heading(report)[1], report_heading(report)[2]})
        EXPECT_NEAR(left_over(line), 0, 1e-9) << line;
    }
  }
}

std::string refusal(const std::vector<MeasuredStep>& steps, const ReportOptions& options) {
  try {
    make_report(steps, options);
  } catch (const base::UserError& error) {
    return error.what();
  }
  return "";
}

TEST(BubbleReport, RefusesWhatWasNotMeasured) {
  const auto steps = measured_of(simulate(gpipe(2, 4), even_costs(2)), 12);
  EXPECT_THAT(refusal({}, {}), HasSubstr("one pipeline stage"));
  EXPECT_THAT(refusal({steps[0]}, {}), HasSubstr("Files of some ranks are missing"));
  EXPECT_THAT(refusal(steps, {.step = 3}), HasSubstr("Whole steps are 12."));
  EXPECT_THAT(refusal(steps, {.replica = 2}), HasSubstr("begin at ranks 0."));
  EXPECT_EQ(refusal(steps, {}), "");
}

// Two layers in each of two stages, the loss as long as three layers: one layer goes to the first stage.
TEST(BubbleReport, TextSaysWhatAndWhere) {
  StageCosts costs = even_costs(2, 10, 5, 5, 1);
  costs.forward[1] = 40;
  const std::vector<MeasuredStep> steps = measured_of(simulate(one_forward_one_backward(2, 2), costs), 5, {0, -500});
  const BubbleReport report = make_report(steps, {.layers = {2, 2}});
  const std::string text = report_text(report);
  for (const char* part : {"1f1b, 2 ranks, 2 microbatches; step 5; the pipeline that begins at rank 0",
                           "\ncause: the schedule 1f1b itself, 28.7 % of the step\nfirst: zbv: ",
                           "the clock of rank 1 was corrected by +500.000 ms", "this schedule has no W", "<- slowest",
                           "<- busiest", "layers: 2", "1f1b, as now", "zbv, 2 chunks",
                           "dualpipev              no: The dualpipev schedule on 2 pipeline ranks cannot run 2 "
                           "microbatches: the count must be at least 4",
                           "'model.pipeline_model_parallel_layout=\"Et*3|tL\"'", "in B", "| stage 1 ("})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(text, Not(HasSubstr("-0.0 ")));
  EXPECT_EQ(summary_line(report).substr(0, 17), "pipeline: bubble ");
  EXPECT_THAT(summary_line(report), HasSubstr("; cause: the schedule 1f1b itself, "));
}

// A wait of a hundredth of a millisecond in a step of 200 is not worth a name.
TEST(BubbleReport, NamesOnlyWaitsThatCount) {
  StageCosts costs = even_costs(2, 10, 10, 10, 0);
  costs.backward[1] += 0.001;
  const auto text = report_text(make_report(measured_of(simulate(gpipe(2, 8), costs))));
  EXPECT_THAT(text, Not(HasSubstr("<- busiest")));
  EXPECT_THAT(text, Not(HasSubstr("stage 1 (0.0 ms)")));
}

TEST(BubbleReport, SaysWhenDualpipevIsAhead) {
  const auto text = [](double backward, double weight) {
    return report_text(make_report(measured_of(simulate(zero_bubble_1p(4, 8), even_costs(4, 10, backward, weight)))));
  };
  EXPECT_THAT(text(10, 16), HasSubstr("\nnote: dualpipev overlaps no F"));
  EXPECT_THAT(text(16, 4), Not(HasSubstr("note: dualpipev")));  // zbv is
  EXPECT_THAT(text(10, 10), Not(HasSubstr("<- slowest")));
}

TEST(BubbleReport, JsonHasTheNumbers) {
  const Timeline real = simulate(zero_bubble_v(2, 4), uneven_costs(4, 1));
  const auto json = nlohmann::json::parse(report_json(make_report(measured_of(real), {.layers = {1, 2, 2, 1}})));
  EXPECT_NEAR(json.at("bubble").at("measured").get<double>(), real.bubble, 1e-9);
  EXPECT_EQ(json.at("by_rank").size(), 2U);
  EXPECT_EQ(json.at("by_rank")[1].at("stages"), nlohmann::json({1, 2}));
  EXPECT_EQ(json.at("by_stage")[1].at("layers"), 2);
  EXPECT_NEAR(json.at("by_stage")[3].at("weight_ms").get<double>(), 14, 1e-6);
  const auto& measured = json.at("timelines").at("measured");
  EXPECT_EQ(measured.at("ranks")[0].at("actions").size(), 2U * 3 * 4);
  EXPECT_EQ(measured.at("ranks")[0].at("actions")[0], nlohmann::json({"F0", 0, 10}));
  EXPECT_EQ(json.at("what_if").at("schedules").size(), 5U);
  EXPECT_TRUE(json.at("advice").at("cause").is_string());
  EXPECT_NEAR(json.at("time_ms").at("transfers").get<double>() + json.at("time_ms").at("unexplained").get<double>(),
              real.span - json.at("time_ms").at("work").get<double>() -
                  json.at("time_ms").at("schedule").get<double>() - json.at("time_ms").at("imbalance").get<double>(),
              1e-9);
  EXPECT_EQ(json.at("by_rank")[0].at("peak_rank_shares"), 2);
  for (const auto& other : json.at("what_if").at("schedules")) {
    if (other.contains("obstacle")) continue;
    EXPECT_THAT(other.at("arguments").get<std::string>(), HasSubstr("model.pipeline_schedule="));
  }
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(BubbleReport, SvgHasBothTimelinesOnOneScale) {
  const Schedule schedule = one_forward_one_backward(3, 4);
  auto steps = measured_of(simulate(schedule, uneven_costs(3, 2)));
  steps[0].actions[1].asked_ns += test_ns(1);
  const BubbleReport report = make_report(steps);
  const std::string svg = report_svg(report);
  EXPECT_THAT(svg, HasSubstr(parts_text(report.bubble)));
  EXPECT_THAT(svg, HasSubstr("cause: " + report.advice.cause));
  EXPECT_EQ(count(svg, "<g><title>"), 2U * 3 * 2 * 4);
  EXPECT_EQ(count(svg, ", stage "), 2U * 3);
  for (const char* part : {"1f1b planned, equal stages and free transfers: span ", "measured, step 1: span ",
                           "<title>waiting for a stage (stage 1): ", "<title>waiting for a transfer (stage 1): ",
                           "<title>filling: 0 to ", "<title>draining: ", ">host</text>"})
    EXPECT_THAT(svg, HasSubstr(part));
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
}

TEST(BubbleReport, FilesOfARun) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "bubble_report_files";
  std::filesystem::remove_all(folder);
  base::make_directories(folder);
  EXPECT_EQ(write_report_files(folder), "");
  EXPECT_FALSE(std::filesystem::exists(folder / "pipeline_report.txt"));
  const auto steps = measured_of(simulate(gpipe(2, 4), even_costs(2)));
  for (const MeasuredStep& step : steps) MeasuredFile(folder, step.global_rank).append(step);
  const BubbleReport report = make_report(steps);
  EXPECT_EQ(write_report_files(folder),
            summary_line(report) + "; details " + (folder / "pipeline_report.txt").string());
  EXPECT_EQ(base::read_file(folder / "pipeline_report.txt"), report_text(report));
  EXPECT_EQ(base::read_file(folder / "pipeline_report.json"), report_json(report));
  EXPECT_EQ(base::read_file(folder / "pipeline_report.svg"), report_svg(report));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace pharos::pipeline
