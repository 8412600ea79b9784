// The bubble explained: planned against measured, in parts that add up, and what would have given less of it.
//
// Four timelines of the same schedule, each with a bubble b = (span - busy) / span for every rank, and for all ranks
// together b = (R span - busy of all) / (R span):
//
//   planned    simulated; every stage takes the mean of all stages' times, transfers are free
//   uneven     simulated; every stage takes its measured (median) times, transfers are free
//   predicted  simulated; measured times, measured transfers
//   measured   the mean of the bubbles of the steps
//
//   schedule  = b(planned)
//   imbalance = b(uneven) - b(planned)
//   transfers = b(predicted) - b(uneven)
//   other     = b(measured) - b(predicted)      jitter of single actions, the host, ranks that start late
//   schedule + imbalance + transfers + other = b(measured)
//
// This holds for each rank and for all together. Parts but the first may be negative: the slowest rank has less of a
// bubble than in equal stages.
//
// The same four timelines divide the time of the step. Only there do slow actions show: a rank that works slowly is
// busy.
//
//   work        = what a rank of equal stages computes      transfers   = span(predicted) - span(uneven)
//   schedule    = span(planned) - work                      unexplained = span - span(predicted)
//   imbalance   = span(uneven) - span(planned)
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "pharos/pipeline/report/measured_timeline.h"
#include "pharos/pipeline/report/what_if.h"

namespace pharos::pipeline {

struct ReportOptions {
  std::optional<std::int64_t> step = std::nullopt;  ///< only this one; default: typical_steps()
  std::int64_t replica = 0;                         ///< by the global rank that is first in the pipeline
  std::vector<int> layers = {};                     ///< [stage]; empty: unknown, then no other split is looked for
};

/// Fractions of the span.
struct BubbleParts {
  double measured = 0;
  double schedule = 0;
  double imbalance = 0;
  double transfers = 0;
  double other = 0;
};

/// Milliseconds; the sum is the span.
struct TimeParts {
  double work = 0;
  double schedule = 0;
  double imbalance = 0;
  double transfers = 0;
  double unexplained = 0;
};

struct RankReport {
  BubbleParts bubble;
  double busy = 0;                                ///< ms in a step, mean of the steps, as all that follow
  std::array<double, kNumIdleReasons> idle = {};  ///< [IdleReason]
  std::vector<double> waited_for;                 ///< [stage], kStage and kTransfer together
};

struct StepBubble {
  std::int64_t step;
  double span;  ///< ms
  double bubble;
};

struct Proposal {
  std::string text;       ///< what to change, and what it gives
  std::string arguments;  ///< that do it on the command line; empty: none do
  double before = 0;      ///< ms, simulated but for what is unexplained
  double after = 0;
};

/// Why the step takes longer than its work, and what to do about it.
struct Advice {
  std::string cause;                ///< the largest part
  std::vector<Proposal> proposals;  ///< at most two; what follows a better split is forecast with that split
};

struct BubbleReport {
  std::vector<StepBubble> steps;  ///< those that were averaged
  std::int64_t replica = 0;
  StageCosts costs;  ///< ms
  bool backward_has_weight = false;
  int slowest_stage = 0;
  BubbleParts bubble;
  double span = 0;                ///< ms, mean of the steps
  std::vector<RankReport> ranks;  ///< [rank]
  TimeParts time;
  Timeline planned, uneven, predicted;
  StepTimeline measured;               ///< of the one of `steps` whose span is nearest to their median
  std::vector<std::string> warnings;   ///< why the numbers are to be doubted
  bool is_noisy = false;               ///< measured and predicted spans differ much: no forecast is to be trusted
  std::vector<Alternative> schedules;  ///< other ones
  std::vector<int> layers;             ///< [stage]; empty when unknown or of another number of stages
  std::optional<Split> split;          ///< a better one; none when noisy
  Advice advice;
};

/// steps: as read_measured_steps() gives them. UserError when no step, or not the one asked for, was measured on every
/// rank of the pipeline; it names the steps and replicas that were.
BubbleReport make_report(const std::vector<MeasuredStep>& steps, const ReportOptions& options = {});

/// "pipeline: bubble 12.3 % = 11.1 schedule +0.9 imbalance +0.2 transfers +0.1 other; cause: the schedule 1f1b itself,
/// 11.0 % of the step"
std::string summary_line(const BubbleReport& report);

/// Reads what the ranks measured and writes pipeline_report.txt, .json and .svg into `run_folder`; returns
/// summary_line() with the path of the text. Called by one rank once all have written their last step. Without a step
/// that is whole it writes nothing and returns "". UserError for unreadable files and what cannot be written.
std::string write_report_files(const std::filesystem::path& run_folder, const ReportOptions& options = {});

}  // namespace pharos::pipeline
