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

/// What would shorten the step most.
struct Advice {
  std::string text;  ///< a sentence
  double gain = 0;   ///< fraction of the measured span
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
  Timeline planned, uneven, predicted;
  StepTimeline measured;               ///< of the last of `steps`
  std::vector<Alternative> schedules;  ///< other ones
  std::vector<int> layers;             ///< [stage]; empty when unknown or of another number of stages
  std::optional<Split> split;          ///< a better one
  Advice advice;
};

/// steps: as read_measured_steps() gives them. UserError when no step, or not the one asked for, was measured on every
/// rank of the pipeline; it names the steps and replicas that were.
BubbleReport make_report(const std::vector<MeasuredStep>& steps, const ReportOptions& options = {});

/// "pipeline: bubble 12.3 % (planned 11.1 %): imbalance 0.9, transfers 0.2, other 0.1; slowest stage 2"
std::string summary_line(const BubbleReport& report);

/// Reads what the ranks measured and writes pipeline_report.txt, .json and .svg into `run_folder`; returns
/// summary_line(). Called by one rank once all have written their last step. Without a step that is whole it writes
/// nothing and returns "". UserError for unreadable files and what cannot be written.
std::string write_report_files(const std::filesystem::path& run_folder, const ReportOptions& options = {});

}  // namespace pharos::pipeline
