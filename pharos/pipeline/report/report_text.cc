#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pharos/base/text.h"
#include "pharos/pipeline/dependencies.h"
#include "pharos/pipeline/report/render_report.h"

namespace pharos::pipeline {
namespace {

/// In percent, never "-0.0".
double percent(double fraction) { return std::round(1000 * fraction) / 10 + 0.0; }

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
  return fmt::format("{}, {} ranks{}, {} microbatches; {}; the pipeline that begins at rank {}\n", schedule.name,
                     schedule.num_ranks, chunks, schedule.num_microbatches, steps, report.replica);
}

std::string overall(const BubbleReport& report) {
  const BubbleParts& bubble = report.bubble;
  return fmt::format("bubble {:.1f} % = {:.1f} schedule (planned) {:+.1f} imbalance {:+.1f} transfers {:+.1f} other\n",
                     percent(bubble.measured), percent(bubble.schedule), percent(bubble.imbalance),
                     percent(bubble.transfers), percent(bubble.other)) +
         fmt::format("step {:.2f} ms; planned {:.2f} ms, predicted from the measured times {:.2f} ms\n", report.span,
                     report.planned.span, report.predicted.span);
}

/// "2 (1.30 ms)", the stage that the rank waited for most; "-" when it waited for none.
std::string most_awaited(const RankReport& rank) {
  const auto most = std::max_element(rank.waited_for.begin(), rank.waited_for.end());
  if (*most <= 0) return "-";
  return fmt::format("stage {} ({:.2f} ms)", most - rank.waited_for.begin(), *most);
}

std::string rank_table(const BubbleReport& report) {
  const Schedule& schedule = report.measured.timeline.schedule;
  std::string text =
      "                       bubble in % =                                 idle in ms:\n"
      "rank stages   busy ms measured schedule imbalance transfers   other     fill   stage transfer    host   drain "
      "  waited most for\n";
  for (std::size_t rank = 0; rank < report.ranks.size(); ++rank) {
    const RankReport& line = report.ranks[rank];
    const auto& idle = line.idle;
    text += fmt::format(
        "{:<4} {:<8}{:8.2f} {:8.1f} {:8.1f} {:9.1f} {:9.1f} {:7.1f} {:8.2f} {:7.2f} {:8.2f} {:7.2f} {:7.2f}   {}\n",
        rank, join_numbers(schedule.stage_of[rank]), line.busy, percent(line.bubble.measured),
        percent(line.bubble.schedule), percent(line.bubble.imbalance), percent(line.bubble.transfers),
        percent(line.bubble.other), idle[0], idle[1], idle[2], idle[3], idle[4], most_awaited(line));
  }
  return text;
}

std::string stage_table(const BubbleReport& report) {
  const StageCosts& costs = report.costs;
  const auto holders = stage_holders(report.measured.timeline.schedule);
  std::string text = "stage rank   F ms     B ms     W ms    sum ms  hop ms  (medians)\n";
  for (std::size_t stage = 0; stage < holders.size(); ++stage) {
    const bool has_hop = stage + 1 < holders.size() && holders[stage].rank != holders[stage + 1].rank;
    const std::string weight = report.backward_has_weight ? "in B" : fmt::format("{:.3f}", costs.weight[stage]);
    text += fmt::format("{:<5} {:<4} {:6.3f} {:8.3f} {:>8} {:9.3f} {:>7}{}{}\n", stage, holders[stage].rank,
                        costs.forward[stage],
                        costs.backward[stage] + (report.backward_has_weight ? costs.weight[stage] : 0), weight,
                        costs.forward[stage] + costs.backward[stage] + costs.weight[stage],
                        has_hop ? fmt::format("{:.3f}", costs.transfer[stage]) : "-",
                        report.layers.empty() ? "" : fmt::format("  layers: {}", report.layers[stage]),
                        static_cast<int>(stage) == report.slowest_stage ? "  <- slowest" : "");
  }
  return text;
}

std::string what_if_row(const std::string& name, double span, double bubble, double before, double peak, double bytes) {
  return fmt::format("{:<22} {:9.2f} {:+8.1f} % {:7.1f} %   {:6.3g}{}\n", name, span,
                     percent(before > 0 ? span / before - 1 : 0), percent(bubble), peak,
                     bytes > 0 ? "  " + base::format_bytes(bytes) : "");
}

double peak_of(const Timeline& timeline) {
  int peak = 0;
  for (const RankTimeline& line : timeline.ranks) peak = std::max(peak, line.peak_in_flight);
  return static_cast<double>(peak) / timeline.schedule.num_chunks;
}

std::string what_if_table(const BubbleReport& report) {
  const Timeline& predicted = report.predicted;
  const double span = predicted.span;
  std::string text = "what if (simulated)      step ms   change    bubble   peak, in microbatches of a rank\n";
  text += what_if_row(predicted.schedule.name + ", as now", span, predicted.bubble, span, peak_of(predicted),
                      predicted.peak_bytes);
  text += what_if_row("equal stages", report.planned.span, report.planned.bubble, span, peak_of(predicted),
                      predicted.peak_bytes);
  text += what_if_row("free transfers", report.uneven.span, report.uneven.bubble, span, peak_of(predicted),
                      predicted.peak_bytes);
  for (const Alternative& other : report.schedules) {
    if (!other.obstacle.empty()) {
      text += fmt::format("{:<22} no: {}\n", other.schedule, other.obstacle);
      continue;
    }
    const std::string chunks = other.num_chunks == 1 ? "" : fmt::format(", {} chunks", other.num_chunks);
    text +=
        what_if_row(other.schedule + chunks, other.span, other.bubble, span, other.peak_in_flight, other.peak_bytes);
  }
  if (report.split) {
    text += what_if_row("layers " + join_numbers(report.split->layers), report.split->span, report.split->bubble, span,
                        peak_of(predicted), 0);
    text += fmt::format("  model.pipeline_model_parallel_layout='{}'\n", report.split->layout);
  } else {
    text += report.layers.empty() ? "another split: the layers of the stages are not known\n"
                                  : "another split of whole layers: none is shorter\n";
  }
  return text;
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
  return text;
}

}  // namespace

std::string report_text(const BubbleReport& report) {
  return heading(report) + overall(report) + "most would help: " + report.advice.text + "\n\n" + rank_table(report) +
         "\n" + stage_table(report) + "\n" + what_if_table(report) + notes(report);
}

}  // namespace pharos::pipeline
