#include "pharos/pipeline/report/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "pharos/pipeline/render.h"

namespace pharos::pipeline {
namespace {

constexpr double kLeast = 0.01;  ///< of the step: smaller parts and gains are not worth a line

/// "28.0 % shorter (1844 -> 1327 ms, both simulated)".
std::string shorter(double before, double after) {
  const int decimals = before >= 1000 ? 0 : before >= 10 ? 1 : 3;
  return fmt::format("{:.1f} % shorter ({:.{}f} -> {:.{}f} ms, both simulated)", 100 * (1 - after / before), before,
                     decimals, after, decimals);
}

double stage_time(const StageCosts& costs, std::size_t stage) {
  return costs.forward[stage] + costs.backward[stage] + costs.weight[stage];
}

/// "stage 1 has 6 of 8 layers", or what it takes.
std::string slowest_stage_text(const BubbleReport& report) {
  const auto slowest = static_cast<std::size_t>(report.slowest_stage);
  const std::size_t num_stages = report.costs.forward.size();
  const int num_layers = std::accumulate(report.layers.begin(), report.layers.end(), 0);
  if (!report.layers.empty() && report.layers[slowest] * static_cast<int>(num_stages) > num_layers)
    return fmt::format("stage {} has {} of {} layers", slowest, report.layers[slowest], num_layers);
  double sum = 0;
  for (std::size_t stage = 0; stage < num_stages; ++stage) sum += stage_time(report.costs, stage);
  const double mean = sum / static_cast<double>(num_stages);
  return fmt::format("stage {} takes {:.2f} x the mean stage", slowest,
                     mean > 0 ? stage_time(report.costs, slowest) / mean : 1);
}

std::string imbalance_text(const BubbleReport& report) {
  const auto busiest = busiest_rank(report.uneven);
  return (busiest ? fmt::format("rank {} is the busiest, ", *busiest) : "") + slowest_stage_text(report);
}

std::string slowest_hop_text(const BubbleReport& report) {
  const auto& transfer = report.costs.transfer;
  const auto slowest = std::max_element(transfer.begin(), transfer.end() - 1);
  const auto stage = slowest - transfer.begin();
  return fmt::format("stage {} to {} takes {:.3g} ms", stage, stage + 1, *slowest);
}

/// Writes the advice of one report, part by part.
class Adviser {
 public:
  explicit Adviser(const BubbleReport& report)
      : report_(report), schedules_(report.schedules), now_(report.predicted.span) {}

  Advice advise() {
    const TimeParts& time = report_.time;
    std::vector<std::pair<double, void (Adviser::*)(const std::string&)>> parts{
        {time.schedule, &Adviser::on_schedule},
        {time.imbalance, &Adviser::on_imbalance},
        {time.transfers, &Adviser::on_transfers},
        {time.unexplained, &Adviser::on_unexplained}};
    std::stable_sort(parts.begin(), parts.end(),
                     [](const auto& left, const auto& right) { return left.first > right.first; });
    for (const auto& [milliseconds, advise_on] : parts) {
      if (milliseconds >= kLeast * report_.span)
        (this->*advise_on)(fmt::format("{:.1f} % of the step", 100 * milliseconds / report_.span));
    }
    if (advice_.cause.empty()) advice_.cause = "none, no part is 1 % of the step";
    return std::move(advice_);
  }

 private:
  /// The first that is named is the largest.
  void name_cause(const std::string& text) {
    if (advice_.cause.empty()) advice_.cause = text;
  }

  void propose(const std::string& text, const std::string& arguments, double before, double after) {
    constexpr std::size_t kMostProposals = 2;
    if (advice_.proposals.size() == kMostProposals || after > before * (1 - kLeast)) return;
    advice_.proposals.push_back({text, arguments, before, after});
  }

  void on_schedule(const std::string& amount) {
    name_cause(fmt::format("the schedule {} itself, {}", report_.predicted.schedule.name, amount));
    if (report_.is_noisy || schedules_.empty() || !schedules_.front().obstacle.empty()) return;
    const Alternative& best = schedules_.front();
    propose(fmt::format("{}: {}, peak {:.3g} rank shares instead of {:.3g}", best.schedule, shorter(now_, best.span),
                        best.peak_rank_shares, peak_rank_shares(report_.predicted)),
            best.arguments, now_, best.span);
  }

  void on_imbalance(const std::string& amount) {
    name_cause(fmt::format("imbalance, {}: {}", amount, imbalance_text(report_)));
    if (report_.is_noisy) return;
    if (report_.split) {
      propose("another split: " + shorter(now_, report_.split->span), report_.split->arguments, now_,
              report_.split->span);
      // What comes after is forecast with this split.
      now_ = report_.split->span;
      schedules_ = other_schedules(report_.predicted.schedule, report_.split->costs, report_.split->layers);
    } else if (report_.layers.empty()) {
      const double equal = now_ - report_.time.imbalance;
      propose("equal stages: up to " + shorter(now_, equal), "", now_, equal);
    }
  }

  void on_transfers(const std::string& amount) {
    name_cause(fmt::format("transfers, {}: {}", amount, slowest_hop_text(report_)));
    if (report_.is_noisy) return;
    const double without = now_ - report_.time.transfers;
    propose("faster transfers: up to " + shorter(now_, without), "", now_, without);
  }

  void on_unexplained(const std::string& amount) {
    name_cause(fmt::format("{} unexplained: actions slower than their median, or time between actions", amount));
    const double before = report_.span, after = report_.predicted.span;
    propose(fmt::format("steadier actions and less host time (`pharos trace show`): up to {:.1f} % shorter",
                        100 * (1 - after / before)),
            "", before, after);
  }

  const BubbleReport& report_;
  std::vector<Alternative> schedules_;
  double now_;  ///< the span that the next proposal starts from
  Advice advice_;
};

}  // namespace

Advice advice_on(const BubbleReport& report) { return Adviser(report).advise(); }

}  // namespace pharos::pipeline
