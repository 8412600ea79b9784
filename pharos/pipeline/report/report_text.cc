#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "pharos/base/text.h"
#include "pharos/pipeline/dependencies.h"
#include "pharos/pipeline/render.h"
#include "pharos/pipeline/report/render_report.h"

namespace pharos::pipeline {
namespace {

/// Never "-0.0".
double rounded(double value, int decimals) {
  const double scale = std::pow(10, decimals);
  return std::round(value * scale) / scale + 0.0;
}

double percent(double fraction) { return rounded(100 * fraction, 1); }

/// Rounded so that the rounded parts add up to their rounded sum: differences of rounded partial sums.
template <std::size_t kSize>
std::array<double, kSize> rounded_parts(const std::array<double, kSize>& parts, int decimals) {
  std::array<double, kSize> result;
  double sum = 0, before = 0;
  for (std::size_t i = 0; i < kSize; ++i) {
    sum += parts[i];
    result[i] = rounded(rounded(sum, decimals) - before, decimals);
    before = rounded(sum, decimals);
  }
  return result;
}

template <std::size_t kSize>
double sum_of(const std::array<double, kSize>& parts) {
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

std::array<double, 4> percents_of(const BubbleParts& bubble) {
  return rounded_parts(
      std::array{100 * bubble.schedule, 100 * bubble.imbalance, 100 * bubble.transfers, 100 * bubble.other}, 1);
}

/// Decimals of milliseconds worth reading beside `longest`.
int decimals_beside(double longest) {
  if (longest >= 1000) return 0;
  return longest >= 10 ? 1 : 3;
}

std::string join_numbers(const std::vector<int>& numbers) {
  std::vector<std::string> words;
  for (const int number : numbers) words.push_back(std::to_string(number));
  return base::join(words, ",");
}

std::string heading(const BubbleReport& report) {
  const Schedule& schedule = report.measured.timeline.schedule;
  const auto first = report.steps.front().step, last = report.steps.back().step;
  const std::string steps = report.steps.size() == 1
                                ? fmt::format("step {}", first)
                                : fmt::format("mean of {} steps, {} to {}", report.steps.size(), first, last);
  const std::string chunks = schedule.num_chunks == 1 ? "" : fmt::format(" with {} chunks each", schedule.num_chunks);
  return fmt::format("{}, {} ranks{}, {} microbatches; {}; the pipeline that begins at rank {}", schedule.name,
                     schedule.num_ranks, chunks, schedule.num_microbatches, steps, report.replica);
}

std::string step_text(const BubbleReport& report) {
  const TimeParts& time = report.time;
  const int decimals = decimals_beside(report.span);
  const auto parts =
      rounded_parts(std::array{time.work, time.schedule, time.imbalance, time.transfers, time.unexplained}, decimals);
  return fmt::format(
      "step {0:.{6}f} ms = {1:.{6}f} work {2:+.{6}f} schedule {3:+.{6}f} imbalance {4:+.{6}f} transfers {5:+.{6}f} "
      "unexplained",
      sum_of(parts), parts[0], parts[1], parts[2], parts[3], parts[4], decimals);
}

/// "stage 2 (1.3 ms)", that which the rank waited for most; "-" when that is next to nothing.
std::string most_awaited(const RankReport& rank, double span) {
  constexpr double kLeast = 0.005;
  const auto most = std::max_element(rank.waited_for.begin(), rank.waited_for.end());
  if (*most < kLeast * span) return "-";
  return fmt::format("stage {} ({:.{}f} ms)", most - rank.waited_for.begin(), *most, decimals_beside(span));
}

std::string rank_table(const BubbleReport& report) {
  const Schedule& schedule = report.measured.timeline.schedule;
  const int decimals = decimals_beside(report.span);
  double mean_busy = 0, most_busy = 0;
  for (const RankReport& line : report.ranks) {
    mean_busy += line.busy / static_cast<double>(report.ranks.size());
    most_busy = std::max(most_busy, line.busy);
  }
  std::string text =
      "rank stages    busy ms | bubble % = schedule imbalance transfers   other |"
      " idle ms: fill   stage transfer    host   drain | waited most for\n";
  for (std::size_t rank = 0; rank < report.ranks.size(); ++rank) {
    const RankReport& line = report.ranks[rank];
    const auto parts = percents_of(line.bubble);
    text += fmt::format("{:<4} {:<9}{:8.{}f} | {:8.1f}   {:8.1f} {:9.1f} {:9.1f} {:7.1f} |", rank,
                        join_numbers(schedule.stage_of[rank]), line.busy, decimals, sum_of(parts), parts[0], parts[1],
                        parts[2], parts[3]);
    constexpr int kWidths[kNumIdleReasons] = {14, 8, 9, 8, 8};
    for (int reason = 0; reason < kNumIdleReasons; ++reason)
      text += fmt::format("{:{}.{}f}", line.idle[reason], kWidths[reason], decimals);
    const bool is_busiest = line.busy == most_busy && most_busy > 1.01 * mean_busy;
    text += fmt::format(" | {}{}\n", most_awaited(line, report.span), is_busiest ? "  <- busiest" : "");
  }
  return text;
}

std::string stage_table(const BubbleReport& report) {
  const StageCosts& costs = report.costs;
  const auto holders = stage_holders(report.measured.timeline.schedule);
  const auto total = [&](int stage) { return costs.forward[stage] + costs.backward[stage] + costs.weight[stage]; };
  double mean = 0;
  for (int stage = 0; stage < static_cast<int>(holders.size()); ++stage)
    mean += total(stage) / static_cast<double>(holders.size());
  const int decimals = total(report.slowest_stage) >= 100 ? 1 : total(report.slowest_stage) >= 1 ? 2 : 3;
  const auto cell = [&](double time) { return fmt::format("{:.{}f}", time, decimals); };
  std::string text = "stage rank     F ms     B ms     W ms   sum ms   hop ms  (medians of one microbatch)\n";
  for (int stage = 0; stage < static_cast<int>(holders.size()); ++stage) {
    const bool has_hop = stage + 1 < static_cast<int>(holders.size()) && holders[stage].rank != holders[stage + 1].rank;
    const double backward = costs.backward[stage] + (report.backward_has_weight ? costs.weight[stage] : 0);
    text += fmt::format("{:<5} {:<4} {:>8} {:>8} {:>8} {:>8} {:>8}{}{}\n", stage, holders[stage].rank,
                        cell(costs.forward[stage]), cell(backward),
                        report.backward_has_weight ? "in B" : cell(costs.weight[stage]), cell(total(stage)),
                        has_hop ? cell(costs.transfer[stage]) : "-",
                        report.layers.empty() ? "" : fmt::format("  layers: {}", report.layers[stage]),
                        stage == report.slowest_stage && total(stage) > 1.01 * mean ? "  <- slowest" : "");
  }
  return text;
}

/// One row of the table of forecasts.
struct WhatIf {
  std::string name;
  double span, bubble, peak;
  double peak_bytes = 0;
  std::string arguments = {};
};

std::vector<WhatIf> what_ifs(const BubbleReport& report) {
  const Timeline& now = report.predicted;
  const double peak = peak_rank_shares(now);
  std::vector<WhatIf> rows{{now.schedule.name + ", as now", now.span, now.bubble, peak, now.peak_bytes},
                           {"equal stages", report.planned.span, report.planned.bubble, peak, now.peak_bytes},
                           {"free transfers", report.uneven.span, report.uneven.bubble, peak, now.peak_bytes}};
  if (report.split)
    rows.push_back({"layers " + join_numbers(report.split->layers), report.split->span, report.split->bubble, peak, 0,
                    report.split->arguments});
  for (const Alternative& other : report.schedules) {
    if (!other.obstacle.empty()) continue;
    const std::string chunks = other.num_chunks == 1 ? "" : fmt::format(", {} chunks", other.num_chunks);
    rows.push_back(
        {other.schedule + chunks, other.span, other.bubble, other.peak_rank_shares, other.peak_bytes, other.arguments});
  }
  return rows;
}

std::string what_if_table(const BubbleReport& report) {
  const double span = report.predicted.span;
  const int decimals = decimals_beside(span);
  std::string text =
      "what if (simulated)      step ms   change   bubble  peak, rank shares  arguments of `pharos train`\n";
  for (const WhatIf& row : what_ifs(report)) {
    const std::string bytes = row.peak_bytes > 0 ? ", " + base::format_bytes(row.peak_bytes) : "";
    std::string line = fmt::format("{:<22} {:9.{}f} {:+7.1f}% {:7.1f}%  {:<17}  {}", row.name, row.span, decimals,
                                   percent(span > 0 ? row.span / span - 1 : 0), percent(row.bubble),
                                   fmt::format("{:.3g}{}", row.peak, bytes), row.arguments);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  for (const Alternative& other : report.schedules) {
    if (!other.obstacle.empty()) text += fmt::format("{:<22} no: {}\n", other.schedule, other.obstacle);
  }
  if (report.split) return text;
  if (report.layers.empty()) return text + "another split: the layers of the stages are not known\n";
  return text + (report.is_noisy ? "another split: not looked for, the times are too unsteady\n"
                                 : "another split of whole layers: none is shorter\n");
}

std::string notes(const BubbleReport& report) {
  std::string text;
  for (std::size_t rank = 0; rank < report.measured.clock_offset_ns.size(); ++rank) {
    const std::int64_t offset_ns = report.measured.clock_offset_ns[rank];
    if (offset_ns != 0)
      text += fmt::format("note: the clock of rank {} was corrected by {:+.3f} ms (step {})\n", rank,
                          -static_cast<double>(offset_ns) / 1e6, report.measured.step);
  }
  if (report.backward_has_weight)
    text +=
        "note: this schedule has no W; for schedules that have, B is taken as half input and half weight gradient\n";
  if (!report.schedules.empty() && report.schedules.front().schedule == "dualpipev")
    text += "note: dualpipev overlaps no F with a B here; that it is ahead of zbv hangs on these times of F, B and W\n";
  return text;
}

}  // namespace

std::string parts_text(const BubbleParts& bubble) {
  const auto parts = percents_of(bubble);
  return fmt::format("bubble {:.1f} % = {:.1f} schedule {:+.1f} imbalance {:+.1f} transfers {:+.1f} other",
                     sum_of(parts), parts[0], parts[1], parts[2], parts[3]);
}

std::vector<std::string> report_heading(const BubbleReport& report) {
  std::vector<std::string> lines{heading(report), parts_text(report.bubble), step_text(report)};
  for (const std::string& warning : report.warnings) lines.push_back("warning: " + warning);
  lines.push_back("cause: " + report.advice.cause);
  const auto& proposals = report.advice.proposals;
  for (std::size_t i = 0; i < proposals.size(); ++i) {
    const char* order = i == 0 ? "first: " : proposals[i].before == proposals[i - 1].after ? "then: " : "or: ";
    lines.push_back(order + proposals[i].text + (proposals[i].arguments.empty() ? "" : ": " + proposals[i].arguments));
  }
  return lines;
}

std::string report_text(const BubbleReport& report) {
  return base::join(report_heading(report), "\n") + "\n\n" + rank_table(report) + "\n" + stage_table(report) + "\n" +
         what_if_table(report) + notes(report);
}

}  // namespace pharos::pipeline
