#include <nlohmann/json.hpp>

#include "pharos/pipeline/render.h"
#include "pharos/pipeline/report/render_report.h"

namespace pharos::pipeline {
namespace {

using json = nlohmann::ordered_json;

const char* const kReasons[kNumIdleReasons] = {"fill", "stage", "transfer", "host", "drain"};

json to_json(const BubbleParts& bubble) {
  return {{"measured", bubble.measured},
          {"schedule", bubble.schedule},
          {"imbalance", bubble.imbalance},
          {"transfers", bubble.transfers},
          {"other", bubble.other}};
}

json ranks_of(const BubbleReport& report) {
  json ranks = json::array();
  for (std::size_t rank = 0; rank < report.ranks.size(); ++rank) {
    const RankReport& line = report.ranks[rank];
    json idle = json::object();
    for (int reason = 0; reason < kNumIdleReasons; ++reason) idle[kReasons[reason]] = line.idle[reason];
    const RankTimeline& measured = report.measured.timeline.ranks[rank];
    ranks.push_back({{"rank", rank},
                     {"stages", report.measured.timeline.schedule.stage_of[rank]},
                     {"bubble", to_json(line.bubble)},
                     {"busy_ms", line.busy},
                     {"idle_ms", idle},
                     {"waited_for_stage_ms", line.waited_for},
                     {"peak_rank_shares", rank_shares(measured.peak_in_flight, report.measured.timeline.schedule)},
                     {"peak_activation_bytes", measured.peak_bytes},
                     {"clock_offset_ms", static_cast<double>(report.measured.clock_offset_ns[rank]) / 1e6}});
  }
  return ranks;
}

json stages_of(const BubbleReport& report) {
  json stages = json::array();
  const StageCosts& costs = report.costs;
  for (std::size_t stage = 0; stage < costs.forward.size(); ++stage) {
    json entry{{"stage", stage},
               {"forward_ms", costs.forward[stage]},
               {"backward_ms", costs.backward[stage]},
               {"weight_ms", costs.weight[stage]},
               {"transfer_ms", costs.transfer[stage]}};
    if (!report.layers.empty()) entry["layers"] = report.layers[stage];
    stages.push_back(std::move(entry));
  }
  return stages;
}

json what_if(const BubbleReport& report) {
  json schedules = json::array();
  for (const Alternative& other : report.schedules) {
    if (!other.obstacle.empty()) {
      schedules.push_back({{"schedule", other.schedule}, {"obstacle", other.obstacle}});
      continue;
    }
    schedules.push_back({{"schedule", other.schedule},
                         {"chunks", other.num_chunks},
                         {"layers", other.layers},
                         {"arguments", other.arguments},
                         {"span_ms", other.span},
                         {"bubble", other.bubble},
                         {"peak_rank_shares", other.peak_rank_shares},
                         {"peak_activation_bytes", other.peak_bytes}});
  }
  json split = nullptr;
  if (report.split) {
    split = {{"layers", report.split->layers},
             {"arguments", report.split->arguments},
             {"span_ms", report.split->span},
             {"bubble", report.split->bubble}};
  }
  return {{"schedules", schedules}, {"split", split}};
}

json advice_of(const Advice& advice) {
  json proposals = json::array();
  for (const Proposal& proposal : advice.proposals)
    proposals.push_back({{"text", proposal.text},
                         {"arguments", proposal.arguments},
                         {"span_before_ms", proposal.before},
                         {"span_after_ms", proposal.after}});
  return {{"cause", advice.cause}, {"proposals", proposals}};
}

json timeline_of(const Timeline& timeline, const std::vector<std::vector<Idle>>& idle) {
  json ranks = json::array();
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    json actions = json::array(), gaps = json::array();
    for (const TimedAction& timed : timeline.ranks[rank].actions)
      actions.push_back({notation(timed.action), timed.start, timed.end});
    for (const Idle& gap : idle[rank]) {
      json entry{kReasons[static_cast<int>(gap.reason)], gap.start, gap.end};
      if (gap.stage >= 0) entry.push_back(gap.stage);
      gaps.push_back(std::move(entry));
    }
    ranks.push_back({{"actions", actions}, {"idle", gaps}});
  }
  return {{"span_ms", timeline.span}, {"bubble", timeline.bubble}, {"ranks", ranks}};
}

}  // namespace

std::string report_json(const BubbleReport& report) {
  const Schedule& schedule = report.measured.timeline.schedule;
  json steps = json::array();
  for (const StepBubble& step : report.steps)
    steps.push_back({{"step", step.step}, {"span_ms", step.span}, {"bubble", step.bubble}});
  const json document{{"schedule", schedule.name},
                      {"ranks", schedule.num_ranks},
                      {"chunks", schedule.num_chunks},
                      {"microbatches", schedule.num_microbatches},
                      {"replica", report.replica},
                      {"steps", steps},
                      {"span_ms", report.span},
                      {"time_ms",
                       {{"work", report.time.work},
                        {"schedule", report.time.schedule},
                        {"imbalance", report.time.imbalance},
                        {"transfers", report.time.transfers},
                        {"unexplained", report.time.unexplained}}},
                      {"bubble", to_json(report.bubble)},
                      {"backward_has_weight", report.backward_has_weight},
                      {"slowest_stage", report.slowest_stage},
                      {"by_rank", ranks_of(report)},
                      {"by_stage", stages_of(report)},
                      {"what_if", what_if(report)},
                      {"warnings", report.warnings},
                      {"advice", advice_of(report.advice)},
                      {"timelines",
                       {{"planned", timeline_of(report.planned, idle_times(report.planned))},
                        {"predicted", timeline_of(report.predicted, idle_times(report.predicted))},
                        {"measured", timeline_of(report.measured.timeline, report.measured.idle)},
                        {"measured_step", report.measured.step}}}};
  return document.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace pharos::pipeline
