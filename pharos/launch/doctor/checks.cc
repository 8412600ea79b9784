#include "pharos/launch/doctor/checks.h"

#include <algorithm>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/launch/doctor/bounded.h"

namespace pharos::launch {
namespace {

bool is_chosen(const std::vector<std::string>& only, const std::string& name) {
  return only.empty() || std::find(only.begin(), only.end(), name) != only.end();
}

const char* remedy_of_time_out(const std::string& check) {
  if (check == "gpu" || check == "versions" || check == "gemm" || check == "bandwidth")
    return "The driver does not answer: see the kernel's log (dmesg) for Xid lines; restart the node.";
  if (check == "shared" || check == "disk" || check == "container")
    return "A file system does not answer: see `mount`, and whether its server is there.";
  return "Give it more time with --check-timeout, or see what it waits for.";
}

Findings findings_of(const Check& check, BoundedCall& call, std::int64_t begin_ns, std::int64_t deadline_ns) {
  const BoundedResult result = call.wait(deadline_ns);
  Finding problem{.check = check.name, .subject = {}, .value = {}, .verdict = Verdict::kFailure};
  switch (result.end) {
    case BoundedResult::End::kDone:
      return findings_from_json(result.value);
    case BoundedResult::End::kTimedOut:
      problem.value = "timed out after " + base::format_duration(base::monotonic_ns() - begin_ns);
      problem.remedy = remedy_of_time_out(check.name);
      problem.data["timed_out"] = true;
      break;
    case BoundedResult::End::kDied:
      problem.value = "the check did not come to its end: " + result.text;
      problem.remedy = "A library it loads (driver, NCCL, libfabric) is broken: install it again.";
      break;
    case BoundedResult::End::kThrew:
      problem.value = "the check failed: " + result.text;
      break;
  }
  return {problem};
}

}  // namespace

const std::vector<Check>& node_checks() {
  static const std::vector<Check> checks = {
      {"cpu", "model, cores of the machine and of this process, frequency, throttling, NUMA", check_cpu},
      {"memory", "available, limit of the control group, swap, huge pages, /dev/shm", check_memory},
      {"limits", "locked memory, open files, processes", check_limits},
      {"clock", "source, resolution, synchronisation", check_clock},
      {"gpu", "devices through NVML: memory, errors, temperature, throttling, other processes", check_gpu},
      {"versions", "kernel, driver, Pharos, libtorch, NCCL, libfabric", check_versions},
      {"network", "interfaces and RDMA devices: state, speed, MTU", check_network},
      {"provider", "which network NCCL would take, and why not the fast one", check_provider},
      {"container", "which one this is, its mounts", check_container},
      {"variables", "environment variables that do harm", check_variables},
      {"disk", "space of the run folder and /tmp", check_disk},
      {"shared", "speed of the folder of --shared", check_shared},
      {"gemm", "speed of a matrix product on each device", check_gemm, true},
      {"bandwidth", "speed of a copy within each device's memory", check_bandwidth, true},
  };
  return checks;
}

const std::vector<std::pair<std::string, std::string>>& rank_checks() {
  static const std::vector<std::pair<std::string, std::string>> checks = {
      {"ranks", "all ranks of the job come and stay"},
      {"same", "versions that differ between nodes"},
      {"outliers", "ranks that are slower than the others"},
      {"clocks", "wall clocks of the nodes against rank 0's"},
      {"token", "the folder of --shared is the same one everywhere"},
      {"collectives", "all-reduce, all-gather, all-to-all: latency and bandwidth"},
      {"pairs", "transfers between two ranks at a time"},
  };
  return checks;
}

void require_known_checks(const std::vector<std::string>& names) {
  std::vector<std::string> known;
  for (const Check& check : node_checks()) known.emplace_back(check.name);
  for (const auto& [name, description] : rank_checks()) known.push_back(name);
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const auto nearest = base::nearest_names(name, known);
    throw base::UserError(
        {.what = "There is no check '" + name + "'.",
         .where = "command line, --only",
         .why = "There are " + base::join(known, ", ") + ".",
         .fix = nearest.empty() ? "See `pharos doctor --list`." : "Did you mean " + base::join(nearest, " or ") + "?"});
  }
}

Findings run_node_checks(const Node& node, const std::vector<std::string>& only, const CheckTimes& times) {
  const auto start = [&node](const Check& check) {
    return BoundedCall([&node, &check] { return to_json(check.run(node)); });
  };
  const auto limit_from = [&](std::int64_t begin_ns) {
    return std::min(begin_ns + times.check_limit_ns, times.deadline_ns);
  };
  std::vector<std::pair<const Check*, BoundedCall>> calls;
  const std::int64_t begin_ns = base::monotonic_ns();
  for (const Check& check : node_checks()) {
    if (is_chosen(only, check.name) && !check.is_benchmark) calls.emplace_back(&check, start(check));
  }
  Findings findings;
  for (auto& [check, call] : calls) {
    for (Finding& finding : findings_of(*check, call, begin_ns, limit_from(begin_ns)))
      findings.push_back(std::move(finding));
  }
  for (const Check& check : node_checks()) {
    if (!is_chosen(only, check.name) || !check.is_benchmark) continue;
    const std::int64_t now_ns = base::monotonic_ns();
    BoundedCall call = start(check);
    for (Finding& finding : findings_of(check, call, now_ns, limit_from(now_ns)))
      findings.push_back(std::move(finding));
  }
  for (Finding& finding : findings) finding.host = node.host;
  return findings;
}

}  // namespace pharos::launch
