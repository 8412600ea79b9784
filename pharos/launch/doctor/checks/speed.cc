// What the benchmarks measured, judged: each device against the others of its node, each repeat against the others.
#include "pharos/launch/doctor/checks/speed.h"

#include <algorithm>

#include "pharos/base/text.h"
#include "pharos/launch/doctor/checks.h"
#include "pharos/launch/doctor/statistics.h"

namespace pharos::launch {

Findings judge_measurements(const std::string& check, const std::string& unit,
                            const std::vector<Measurement>& measurements) {
  constexpr double kWideSpread = 0.5;
  Findings findings;
  std::vector<double> medians;
  for (const Measurement& measurement : measurements) {
    const double middle = median_of(measurement.values), spread = spread_of(measurement.values);
    medians.push_back(middle);
    Finding finding{.check = check,
                    .subject = measurement.device,
                    .value = fixed(middle, middle < 100 ? 1 : 0) + " " + unit + ", repeats differ by " +
                             fixed(100 * spread, 0) + " %",
                    .verdict = Verdict::kOk,
                    .remedy = {},
                    .data = {{"median", middle}, {"unit", unit}, {"values", measurement.values}, {"spread", spread}}};
    if (spread > kWideSpread) {
      finding.verdict = Verdict::kNote;
      finding.remedy = "Something else uses the device now and then: repeat on an idle node.";
    }
    findings.push_back(std::move(finding));
  }
  for (const std::size_t index : find_slow(medians)) {
    findings[index].value += "; slower than the other devices of this node";
    findings[index].verdict = Verdict::kWarning;
    findings[index].remedy = "See this device's gpu line; the slowest device sets the pace of the whole job.";
  }
  if (findings.empty()) {
    findings.push_back({.check = check, .subject = {}, .value = "not measured: no device", .verdict = Verdict::kNote});
  }
  return findings;
}

Findings check_gemm(const Node& node) { return judge_measurements("gemm", "GFLOP/s", node.benchmarks.gemm()); }

Findings check_bandwidth(const Node& node) {
  return judge_measurements("bandwidth", "GB/s", node.benchmarks.bandwidth());
}

}  // namespace pharos::launch
