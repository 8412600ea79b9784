#include "pharos/pipeline/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/base/text.h"
#include "pharos/pipeline/report/advice.h"
#include "pharos/pipeline/report/measured_file.h"
#include "pharos/pipeline/report/render_report.h"

namespace pharos::pipeline {
namespace {

/// "1, 2, 3 and 97 more".
std::string shortened(const std::set<std::int64_t>& numbers) {
  constexpr std::size_t kMostShown = 8;
  std::vector<std::string> shown;
  for (const std::int64_t number : numbers) {
    if (shown.size() < kMostShown) shown.push_back(std::to_string(number));
  }
  const std::string text = base::join(shown, ", ");
  return numbers.size() > kMostShown ? fmt::format("{} and {} more", text, numbers.size() - kMostShown) : text;
}

[[noreturn]] void throw_nothing_measured(const std::vector<MeasuredStep>& steps, const std::vector<StepTimeline>& whole,
                                         const ReportOptions& options) {
  std::set<std::int64_t> replicas, numbers;
  for (const MeasuredStep& step : steps) replicas.insert(step.replica);
  for (const StepTimeline& step : whole) numbers.insert(step.step);
  if (options.step && !numbers.empty()) {
    throw base::UserError(
        {.what = fmt::format("Step {} was not measured on every rank of the pipeline.", *options.step),
         .why = fmt::format("Whole steps are {}.", shortened(numbers)),
         .fix = "Choose one of them with --step."});
  }
  if (!replicas.empty() && !replicas.contains(options.replica)) {
    throw base::UserError({.what = fmt::format("There is no pipeline that begins at rank {}.", options.replica),
                           .why = fmt::format("Those that were measured begin at ranks {}.", shortened(replicas)),
                           .fix = "Choose one of them with --replica."});
  }
  throw base::UserError({.what = "No step was measured on every rank of the pipeline.",
                         .why = steps.empty() ? "No rank wrote a step: the run had one pipeline stage, or ended before "
                                                "its first measured step."
                                              : "Files of some ranks are missing, or they ended before the step did.",
                         .fix = "Give the folder of a run with model.pipeline_model_parallel_size above 1, with the "
                                "trace/pipeline_rank_*.jsonl of all ranks."});
}

/// As many stages of the same total work.
StageCosts equal_stages(const StageCosts& costs) {
  const auto spread = [](std::vector<double> values) {
    const double mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
    return std::vector<double>(values.size(), mean);
  };
  StageCosts equal = costs;
  equal.forward = spread(costs.forward);
  equal.backward = spread(costs.backward);
  equal.weight = spread(costs.weight);
  return equal;
}

StageCosts with_free_transfers(StageCosts costs) {
  std::fill(costs.transfer.begin(), costs.transfer.end(), 0);
  return costs;
}

int slowest(const StageCosts& costs) {
  int slowest = 0;
  double longest = -1;
  for (int stage = 0; stage < static_cast<int>(costs.forward.size()); ++stage) {
    const double time = costs.forward[stage] + costs.backward[stage] + costs.weight[stage];
    if (time > longest) slowest = stage;
    longest = std::max(longest, time);
  }
  return slowest;
}

BubbleParts parts_of(double planned, double uneven, double predicted, double measured) {
  return {.measured = measured,
          .schedule = planned,
          .imbalance = uneven - planned,
          .transfers = predicted - uneven,
          .other = measured - predicted};
}

RankReport report_of_rank(int rank, const BubbleReport& report, const std::vector<StepTimeline>& steps) {
  RankReport result;
  result.waited_for.assign(report.costs.forward.size(), 0);
  const double share = 1 / static_cast<double>(steps.size());
  double bubble = 0;
  for (const StepTimeline& step : steps) {
    bubble += step.timeline.ranks[rank].bubble * share;
    result.busy += step.timeline.ranks[rank].busy * share;
    for (const Idle& idle : step.idle[rank]) {
      const double time = (idle.end - idle.start) * share;
      result.idle[static_cast<std::size_t>(idle.reason)] += time;
      if (idle.stage >= 0) result.waited_for[idle.stage] += time;
    }
  }
  result.bubble = parts_of(report.planned.ranks[rank].bubble, report.uneven.ranks[rank].bubble,
                           report.predicted.ranks[rank].bubble, bubble);
  return result;
}

TimeParts time_of(const BubbleReport& report) {
  const double work = report.planned.span * (1 - report.planned.bubble);
  return {.work = work,
          .schedule = report.planned.span - work,
          .imbalance = report.uneven.span - report.planned.span,
          .transfers = report.predicted.span - report.uneven.span,
          .unexplained = report.span - report.predicted.span};
}

/// The step whose span is nearest to the median of all.
const StepTimeline& median_step(const std::vector<StepTimeline>& steps) {
  std::vector<const StepTimeline*> by_span;
  for (const StepTimeline& step : steps) by_span.push_back(&step);
  std::stable_sort(by_span.begin(), by_span.end(), [](const StepTimeline* left, const StepTimeline* right) {
    return left->timeline.span < right->timeline.span;
  });
  return *by_span[(by_span.size() - 1) / 2];
}

void add_warnings(BubbleReport& report, bool one_was_asked_for) {
  constexpr double kMostUnexplained = 0.2;
  constexpr std::size_t kFewestSteps = 3;
  const double difference = report.span / report.predicted.span - 1;
  report.is_noisy = report.predicted.span > 0 && std::abs(difference) > kMostUnexplained;
  if (report.is_noisy)
    report.warnings.push_back(
        fmt::format("the step took {:+.0f} % against what its median actions give: do not trust the forecasts. Do the "
                    "ranks share cores or devices with each other or with something else?",
                    100 * difference));
  if (report.steps.size() < kFewestSteps && !one_was_asked_for)
    report.warnings.push_back(report.steps.size() == 1
                                  ? "only 1 step was averaged"
                                  : fmt::format("only {} steps were averaged", report.steps.size()));
}

}  // namespace

BubbleReport make_report(const std::vector<MeasuredStep>& measured, const ReportOptions& options) {
  std::vector<StepTimeline> whole = step_timelines(measured, options.replica);
  std::vector<StepTimeline> steps = whole;
  if (options.step) {
    std::erase_if(steps, [&](const StepTimeline& step) { return step.step != *options.step; });
  } else {
    steps = typical_steps(std::move(steps));
  }
  if (steps.empty()) throw_nothing_measured(measured, whole, options);
  BubbleReport report;
  report.replica = options.replica;
  report.costs = costs_of(steps);
  report.measured = median_step(steps);
  const Schedule& schedule = report.measured.timeline.schedule;
  report.backward_has_weight = last_phase(schedule) == Phase::kBackward;
  report.slowest_stage = slowest(report.costs);
  report.planned = simulate(schedule, with_free_transfers(equal_stages(report.costs)));
  report.uneven = simulate(schedule, with_free_transfers(report.costs));
  report.predicted = simulate(schedule, report.costs);
  double bubble = 0;
  for (const StepTimeline& step : steps) {
    report.steps.push_back({step.step, step.timeline.span, step.timeline.bubble});
    bubble += step.timeline.bubble / static_cast<double>(steps.size());
    report.span += step.timeline.span / static_cast<double>(steps.size());
  }
  report.bubble = parts_of(report.planned.bubble, report.uneven.bubble, report.predicted.bubble, bubble);
  for (int rank = 0; rank < schedule.num_ranks; ++rank) report.ranks.push_back(report_of_rank(rank, report, steps));
  report.time = time_of(report);
  add_warnings(report, options.step.has_value());
  if (options.layers.size() == report.costs.forward.size()) {
    report.layers = options.layers;
    if (!report.is_noisy) report.split = better_split(schedule, report.costs, report.layers);
  }
  report.schedules = other_schedules(schedule, report.costs, report.layers);
  report.advice = advice_on(report);
  return report;
}

std::string summary_line(const BubbleReport& report) {
  return "pipeline: " + parts_text(report.bubble) + "; cause: " + report.advice.cause;
}

std::string write_report_files(const std::filesystem::path& run_folder, const ReportOptions& options) {
  const std::vector<MeasuredStep> steps = read_measured_steps(run_folder);
  if (step_timelines(steps, options.replica).empty()) return "";
  const BubbleReport report = make_report(steps, options);
  base::write_file_atomically(run_folder / "pipeline_report.txt", report_text(report));
  base::write_file_atomically(run_folder / "pipeline_report.json", report_json(report));
  base::write_file_atomically(run_folder / "pipeline_report.svg", report_svg(report));
  return summary_line(report) + "; details " + (run_folder / "pipeline_report.txt").string();
}

}  // namespace pharos::pipeline
