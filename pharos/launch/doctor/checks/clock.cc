// Clocks: what durations are measured with, and whether the wall clock is kept right.
#include "pharos/base/clock.h"

#include <sys/timex.h>

#include <algorithm>
#include <ctime>
#include <limits>

#include "pharos/base/text.h"
#include "pharos/launch/doctor/checks.h"

namespace pharos::launch {
namespace {

/// Of a reading, with what the reading itself costs.
std::int64_t cost_of_reading_ns() {
  constexpr int kReadings = 2000;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (int round = 0; round < 5; ++round) {
    const std::int64_t begin = base::monotonic_ns();
    for (int i = 1; i < kReadings; ++i) base::monotonic_ns();
    least = std::min(least, (base::monotonic_ns() - begin) / kReadings);
  }
  return least;
}

Finding source_finding(const Node& node) {
  const std::string folder = "/sys/devices/system/clocksource/clocksource0";
  const std::string source = node.read(folder + "/current_clocksource").value_or("unknown");
  const std::string available = node.read(folder + "/available_clocksource").value_or("");
  timespec resolution{};
  ::clock_getres(CLOCK_MONOTONIC, &resolution);
  const std::int64_t cost_ns = cost_of_reading_ns();
  Finding finding{.check = "clock",
                  .subject = "source",
                  .value = source + ", " + std::to_string(cost_ns) + " ns a reading",
                  .verdict = Verdict::kOk,
                  .remedy = {},
                  .data = {{"source", source}, {"resolution_ns", resolution.tv_nsec}, {"reading_ns", cost_ns}}};
  const bool is_slow = source == "hpet" || source == "acpi_pm" || source == "jiffies" || source == "xen";
  if (is_slow) {
    finding.verdict = Verdict::kWarning;
    finding.remedy = "Each reading is a trip into the kernel, and spans read the clock often: ";
    finding.remedy += available.find("tsc") != std::string::npos
                          ? "write tsc to " + folder + "/current_clocksource."
                          : "boot with clocksource=tsc tsc=reliable where the processor has an invariant TSC.";
  }
  return finding;
}

Finding synchronised_finding() {
  timex state{};
  const int verdict = ::adjtimex(&state);
  Finding finding{.check = "clock", .subject = "synchronised", .value = "unknown", .verdict = Verdict::kNote};
  if (verdict < 0) return finding;
  // Time servers keep the kernel's flag clear; TIME_ERROR stands for more than that.
  const bool is_synchronised = (state.status & STA_UNSYNC) == 0;
  finding.data = {{"synchronised", is_synchronised}, {"estimated_error_us", state.esterror}};
  if (is_synchronised) {
    finding.value = "yes, within " + base::format_duration(static_cast<std::int64_t>(state.maxerror) * 1000);
    finding.verdict = Verdict::kOk;
    return finding;
  }
  finding.value = "no";
  finding.remedy = "Wall times of spans and logs of several nodes will not agree: run chronyd or ntpd on the host.";
  return finding;
}

}  // namespace

Findings check_clock(const Node& node) { return {source_finding(node), synchronised_finding()}; }

}  // namespace pharos::launch
