#include "pharos/launch/doctor/peers.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "pharos/base/text.h"
#include "pharos/launch/doctor/node.h"
#include "pharos/launch/doctor/statistics.h"

namespace pharos::launch {
namespace {

/// Names with a limit: a job may have a thousand hosts.
std::string some_of(const std::set<std::string>& names) {
  constexpr std::size_t kMost = 8;
  std::vector<std::string> shown(names.begin(), names.end());
  const std::size_t count = shown.size();
  if (count > kMost) {
    shown.resize(kMost);
    shown.push_back("… (" + std::to_string(count) + " in all)");
  }
  return base::join(shown, ", ");
}

bool must_be_equal(const std::string& what) { return what == "pharos" || what == "libtorch" || what == "NCCL"; }

}  // namespace

nlohmann::json to_json(const RankReport& report) {
  return {
      {"rank", report.rank}, {"host", report.host}, {"device", report.device}, {"findings", to_json(report.findings)}};
}

RankReport rank_report_from_json(const nlohmann::json& json) {
  return {.rank = json.at("rank"),
          .host = json.at("host"),
          .device = json.at("device"),
          .findings = findings_from_json(json.at("findings"))};
}

Findings judge_same_versions(const std::vector<RankReport>& reports) {
  std::map<std::string, std::map<std::string, std::set<std::string>>> hosts;  // by what and version
  std::set<std::string> all_hosts;
  for (const RankReport& report : reports) {
    for (const Finding& finding : report.findings) {
      if (finding.check != "versions") continue;
      hosts[finding.subject][finding.data.value("version", "")].insert(report.host);
      all_hosts.insert(report.host);
    }
  }
  Findings findings;
  for (const auto& [what, versions] : hosts) {
    if (versions.size() < 2) continue;
    std::vector<std::string> parts;
    nlohmann::json data;
    for (const auto& [version, names] : versions) {
      parts.push_back(version + " on " + some_of(names));
      data[version] = names;
    }
    findings.push_back({.check = "same",
                        .subject = what,
                        .value = base::join(parts, "; "),
                        .verdict = must_be_equal(what) ? Verdict::kFailure : Verdict::kWarning,
                        .remedy = "Install the same on all nodes, or run all in the same container image.",
                        .data = data});
  }
  if (findings.empty() && !hosts.empty()) {
    findings.push_back({.check = "same",
                        .subject = {},
                        .value = "versions agree on " + counted(static_cast<std::int64_t>(all_hosts.size()), "node")});
  }
  return findings;
}

Finding judge_speeds(const RankSpeeds& speeds, const std::vector<std::string>& hosts) {
  const double middle = median_of(speeds.values);
  Finding finding{.check = speeds.check,
                  .subject = speeds.subject,
                  .value = fixed(middle, middle < 100 ? 2 : 0) + " " + speeds.unit + " (median of " +
                           counted(static_cast<std::int64_t>(speeds.values.size()), "rank") + ", which differ by " +
                           fixed(100 * spread_of(speeds.values), 0) + " %)",
                  .verdict = Verdict::kOk,
                  .remedy = {},
                  .data = {{"median", middle}, {"unit", speeds.unit}, {"values", speeds.values}}};
  nlohmann::json slow = nlohmann::json::array();
  for (const std::size_t rank : find_slow(speeds.values)) {
    finding.value += "\nrank " + std::to_string(rank) + " on " + hosts.at(rank) + ": " +
                     fixed(speeds.values[rank], middle < 100 ? 2 : 0) + " " + speeds.unit;
    slow.push_back(rank);
  }
  finding.data["slow_ranks"] = slow;
  if (!slow.empty()) {
    finding.verdict = Verdict::kWarning;
    finding.remedy =
        "The slowest rank sets the pace of the job: look at the lines of its node, or leave the node out "
        "(--exclude).";
  }
  return finding;
}

std::vector<double> speeds_of(const std::vector<RankReport>& reports, const std::string& check) {
  std::vector<double> values;
  for (const RankReport& report : reports) {
    const auto found = std::find_if(report.findings.begin(), report.findings.end(), [&](const Finding& finding) {
      return finding.check == check && finding.data.contains("median");
    });
    if (found == report.findings.end()) return {};
    values.push_back(found->data["median"]);
  }
  return values;
}

ClockOffset estimate_clock_offset(const std::vector<ClockExchange>& exchanges) {
  const auto best = std::min_element(exchanges.begin(), exchanges.end(), [](const auto& one, const auto& other) {
    return one.received_ns - one.sent_ns < other.received_ns - other.sent_ns;
  });
  if (best == exchanges.end()) return {};
  const std::int64_t half_ns = (best->received_ns - best->sent_ns + 1) / 2;
  return {.offset_ns = best->answered_ns - best->sent_ns - half_ns, .error_ns = half_ns};
}

Finding judge_clock_offset(const std::string& host, const ClockOffset& offset) {
  constexpr std::int64_t kMillisecondNs = 1'000'000;
  const std::int64_t size_ns = std::abs(offset.offset_ns);
  Finding finding{.check = "clocks",
                  .subject = host,
                  .value = (offset.offset_ns < 0 ? "-" : "+") + base::format_duration(size_ns) + " ± " +
                           base::format_duration(offset.error_ns) + " against rank 0",
                  .verdict = Verdict::kOk,
                  .remedy = {},
                  .data = {{"offset_ns", offset.offset_ns}, {"error_ns", offset.error_ns}}};
  if (size_ns - offset.error_ns > 100 * kMillisecondNs) {
    finding.verdict = Verdict::kWarning;
    finding.remedy = "Times of logs and traces do not fit together: run chronyd on both hosts (chronyc tracking).";
  } else if (size_ns - offset.error_ns > kMillisecondNs) {
    finding.verdict = Verdict::kNote;
  }
  return finding;
}

std::int64_t num_rounds(std::int64_t size) { return size % 2 == 0 ? size - 1 : size; }

std::optional<std::int64_t> partner_of(std::int64_t rank, std::int64_t size, std::int64_t round) {
  // Ranks 0 … n - 2 stand on a circle; in round r those meet whose numbers add up to r (mod n - 1); who would meet
  // itself meets n - 1, which is nobody when the size is odd.
  const std::int64_t circle = num_rounds(size);
  const auto at_rest = [&] {
    for (std::int64_t one = 0; one < circle; ++one) {
      if ((2 * one) % circle == round % circle) return one;
    }
    return std::int64_t{0};
  };
  std::int64_t partner = 0;
  if (rank == circle) {
    partner = at_rest();
  } else {
    partner = ((round - rank) % circle + circle) % circle;
    if (partner == rank) partner = circle;
  }
  if (partner >= size) return std::nullopt;
  return partner;
}

}  // namespace pharos::launch
