#include "pharos/cli/doctor/job_checks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/cli/doctor/collective_benchmarks.h"
#include "pharos/cli/doctor/shared_token.h"
#include "pharos/comm/world.h"

namespace pharos::cli {
namespace {

using launch::Finding;
using launch::Findings;
using launch::RankReport;
using launch::Verdict;

/// Asks each first rank of a node for its wall clock, from rank 0. Every rank calls it.
Findings measure_clocks(comm::World& world, const std::vector<RankReport>& reports) {
  constexpr int kQuestions = 20;
  Findings findings;
  std::set<std::string> seen{reports.front().host};
  for (const RankReport& report : reports) {
    if (!seen.insert(report.host).second) continue;
    if (world.rank() != 0 && world.rank() != report.rank) continue;
    const at::Tensor value = at::zeros({1}, at::kLong);
    std::vector<launch::ClockExchange> exchanges;
    for (int i = 0; i < kQuestions; ++i) {
      if (world.rank() == 0) {
        launch::ClockExchange exchange{.sent_ns = base::wall_ns()};
        world.all().send(value, report.rank, {"clock question", i}).wait();
        world.all().receive(value, report.rank, {"clock answer", i}).wait();
        exchange.received_ns = base::wall_ns();
        exchange.answered_ns = value.item<std::int64_t>();
        exchanges.push_back(exchange);
      } else {
        world.all().receive(value, 0, {"clock question", i}).wait();
        value.fill_(base::wall_ns());
        world.all().send(value, 0, {"clock answer", i}).wait();
      }
    }
    if (world.rank() == 0)
      findings.push_back(launch::judge_clock_offset(report.host, launch::estimate_clock_offset(exchanges)));
  }
  if (world.rank() == 0 && findings.empty())
    findings.push_back({.check = "clocks", .subject = {}, .value = "all ranks are on one node"});
  return findings;
}

Finding arrival_problem(const base::UserError& error) {
  const auto& parts = error.parts();
  return {.check = "ranks", .subject = {}, .value = parts.what, .verdict = Verdict::kFailure, .remedy = parts.fix};
}

/// Groups need one kind of device on all ranks.
std::string odd_devices(const std::vector<RankReport>& reports) {
  std::string text;
  for (const RankReport& report : reports) {
    if (report.device == reports.front().device) continue;
    text += (text.empty() ? "" : ", ") + std::string("rank ") + std::to_string(report.rank) + " on " + report.host;
  }
  return text;
}

class JobChecks {
 public:
  JobChecks(const JobCheckOptions& options, const std::function<void(const Findings&)>& report)
      : options_(options), report_(report) {}

  Verdict run(const RankReport& own, bool& has_met) {
    comm::World world(
        options_.ranks,
        {.device = device_of(own), .rendezvous_timeout = options_.arrival_limit, .timeout = options_.call_limit});
    has_met = true;
    try {
      const Verdict verdict = run_in(world, own);
      world.leave();
      return verdict;
    } catch (const std::exception&) {
      world.abandon();
      throw;
    }
  }

 private:
  at::Device device_of(const RankReport& own) const {
    if (own.device != "cuda") return at::kCPU;
    return {at::kCUDA, static_cast<at::DeviceIndex>(options_.ranks.local_rank)};
  }

  bool is_chosen(const std::string& name) const {
    return options_.only.empty() || std::find(options_.only.begin(), options_.only.end(), name) != options_.only.end();
  }

  /// Only rank 0 tells; the others do their part.
  void tell(const comm::World& world, const Findings& findings) {
    if (world.rank() != 0) return;
    worst_ = std::max(worst_, launch::worst_of(findings));
    report_(findings);
  }

  Verdict run_in(comm::World& world, const RankReport& own) {
    std::vector<RankReport> reports;
    std::vector<std::string> hosts;
    for (const std::string& text : world.exchange("doctor/report", to_json(own).dump())) {
      reports.push_back(launch::rank_report_from_json(nlohmann::json::parse(text)));
      hosts.push_back(reports.back().host);
      if (reports.back().rank != world.rank()) tell(world, reports.back().findings);
    }
    worst_ = std::max(worst_, launch::worst_of(own.findings));
    if (is_chosen("ranks")) {
      const auto count = static_cast<std::int64_t>(std::set<std::string>(hosts.begin(), hosts.end()).size());
      tell(world, {{.check = "ranks",
                    .subject = {},
                    .value = std::to_string(world.size()) + " ranks on " + std::to_string(count) +
                             (count == 1 ? " node" : " nodes") + " have met"}});
    }
    if (is_chosen("same")) tell(world, launch::judge_same_versions(reports));
    if (is_chosen("outliers")) tell(world, outliers(reports, hosts));
    if (is_chosen("token") && !options_.shared_folder.empty())
      tell(world, check_shared_token(world, hosts, options_.shared_folder));
    if (const std::string odd = odd_devices(reports); !odd.empty()) {
      tell(world, {{.check = "ranks",
                    .subject = "devices",
                    .value = "another kind of device than rank 0's (" + reports.front().device + "): " + odd,
                    .verdict = Verdict::kFailure,
                    .remedy = "See the gpu lines of these nodes; collectives were not measured."}});
    } else {
      measure(world, reports, hosts);
    }
    return static_cast<Verdict>(std::stoi(world.announce("doctor/verdict", std::to_string(static_cast<int>(worst_)))));
  }

  Findings outliers(const std::vector<RankReport>& reports, const std::vector<std::string>& hosts) const {
    Findings findings;
    for (const auto& [check, unit] : {std::pair{"gemm", "GFLOP/s"}, std::pair{"bandwidth", "GB/s"}}) {
      const auto values = launch::speeds_of(reports, check);
      if (!values.empty())
        findings.push_back(
            launch::judge_speeds({.check = "outliers", .subject = check, .unit = unit, .values = values}, hosts));
    }
    return findings;
  }

  void measure(comm::World& world, const std::vector<RankReport>& reports, const std::vector<std::string>& hosts) {
    if (is_chosen("clocks")) tell(world, measure_clocks(world, reports));
    if (is_chosen("collectives")) tell(world, measure_collectives(world));
    if (is_chosen("pairs")) tell(world, measure_pairs(world, hosts));
  }

  const JobCheckOptions& options_;
  const std::function<void(const Findings&)>& report_;
  Verdict worst_ = Verdict::kOk;
};

}  // namespace

Verdict run_job_checks(const JobCheckOptions& options, const RankReport& own,
                       const std::function<void(const Findings&)>& report, bool& has_met) {
  try {
    return JobChecks(options, report).run(own, has_met);
  } catch (const base::UserError& error) {
    report({arrival_problem(error)});
  } catch (const std::exception& error) {
    report({{.check = "ranks",
             .subject = {},
             .value = error.what(),
             .verdict = Verdict::kFailure,
             .remedy = "A rank has ended or does not answer: look at its output, and at the network lines."}});
  }
  return Verdict::kFailure;
}

}  // namespace pharos::cli
