#include <fmt/format.h>

#include "pharos/pipeline/render.h"
#include "pharos/pipeline/report/render_report.h"

namespace pharos::pipeline {
namespace {

struct Look {
  const char* fill;
  const char* name;
};
/// [IdleReason]
const Look kLooks[kNumIdleReasons] = {{"#e6e6e6", "filling"},
                                      {"#f5b5b5", "waiting for a stage"},
                                      {"#cdb4ee", "waiting for a transfer"},
                                      {"#ffec99", "host"},
                                      {"#e6e6e6", "draining"}};

Panel panel_of(std::string title, const Timeline& timeline, const std::vector<std::vector<Idle>>& idle) {
  Panel panel{.title = std::move(title), .timeline = &timeline, .gaps = {}};
  for (const auto& times : idle) {
    auto& gaps = panel.gaps.emplace_back();
    for (const Idle& time : times) {
      const Look& look = kLooks[static_cast<std::size_t>(time.reason)];
      const std::string stage = time.stage >= 0 ? fmt::format(" (stage {})", time.stage) : "";
      gaps.push_back({time.start, time.end, look.fill, look.name + stage});
    }
  }
  return panel;
}

}  // namespace

std::string report_svg(const BubbleReport& report) {
  const Timeline& measured = report.measured.timeline;
  const auto title = [&](const std::string& what, const Timeline& timeline) {
    return fmt::format("{}: span {:.4g} ms, bubble {:.1f} %", what, timeline.span, 100 * timeline.bubble);
  };
  const std::vector<Panel> panels = {
      panel_of(
          title(fmt::format("{} planned, equal stages and free transfers", measured.schedule.name), report.planned),
          report.planned, idle_times(report.planned)),
      panel_of(title(fmt::format("measured, step {}", report.measured.step), measured), measured,
               report.measured.idle)};
  std::vector<LegendEntry> legend{{kLooks[0].fill, "filling, draining"}};
  for (const IdleReason reason : {IdleReason::kStage, IdleReason::kTransfer, IdleReason::kHost}) {
    const Look& look = kLooks[static_cast<std::size_t>(reason)];
    legend.push_back({look.fill, look.name});
  }
  return render_svg(panels, legend, "ms");
}

}  // namespace pharos::pipeline
