#include <fmt/format.h>

#include "pharos/pipeline/render.h"
#include "pharos/pipeline/report/render_report.h"

namespace pharos::pipeline {

std::string report_svg(const BubbleReport& report) {
  const Timeline& measured = report.measured.timeline;
  const auto title = [&](const std::string& what, const Timeline& timeline) {
    return fmt::format("{}: span {:.4g} ms, bubble {:.1f} %", what, timeline.span, 100 * timeline.bubble);
  };
  constexpr std::size_t kLongestLine = 190;  // fits the narrowest picture
  std::vector<std::string> heading = report_heading(report);
  for (std::string& line : heading) {
    if (line.size() > kLongestLine) line = line.substr(0, kLongestLine) + " ...";
  }
  return render_svg({{.title = title(fmt::format("{} planned, equal stages and free transfers", measured.schedule.name),
                                     report.planned),
                      .timeline = &report.planned},
                     {.title = title(fmt::format("measured, step {}", report.measured.step), measured),
                      .timeline = &measured,
                      .idle = report.measured.idle}},
                    "ms", heading);
}

}  // namespace pharos::pipeline
