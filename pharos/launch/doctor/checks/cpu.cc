// Processors: how many there are, how many this process may use, and what slows them down.
#include <algorithm>
#include <cmath>
#include <set>

#include "pharos/launch/doctor/checks.h"
#include "pharos/launch/doctor/checks/control_group.h"

namespace pharos::launch {
namespace {

const std::string kCpus = "/sys/devices/system/cpu";

bool is_cpu_folder(const std::string& name) {
  return name.size() > 3 && name.starts_with("cpu") &&
         std::all_of(name.begin() + 3, name.end(), [](char letter) { return letter >= '0' && letter <= '9'; });
}

struct Frequency {
  std::set<std::string> governors;
  std::int64_t most_khz = 0;       ///< that the processor can do
  std::int64_t limit_khz = 0;      ///< least scaling_max_freq of all
  std::int64_t num_throttled = 0;  ///< events since the start of the machine
};

Frequency read_frequency(const Node& node) {
  Frequency frequency;
  for (const std::string& name : node.list(kCpus)) {
    if (!is_cpu_folder(name)) continue;
    const std::string folder = kCpus + "/" + name;
    if (const auto governor = node.read(folder + "/cpufreq/scaling_governor")) frequency.governors.insert(*governor);
    if (const auto most = node.read_number(folder + "/cpufreq/cpuinfo_max_freq"))
      frequency.most_khz = std::max(frequency.most_khz, *most);
    if (const auto limit = node.read_number(folder + "/cpufreq/scaling_max_freq"))
      frequency.limit_khz = frequency.limit_khz == 0 ? *limit : std::min(frequency.limit_khz, *limit);
    frequency.num_throttled += node.read_number(folder + "/thermal_throttle/core_throttle_count").value_or(0);
  }
  return frequency;
}

Finding cores_finding(const Node& node) {
  const std::string info = node.read("/proc/cpuinfo").value_or("");
  const std::int64_t num_online = count_of_list(node.read(kCpus + "/online").value_or(""));
  const std::int64_t num_allowed =
      count_of_list(field_of(node.read("/proc/self/status").value_or(""), "Cpus_allowed_list"));
  const double quota = control_group_cpus(node);
  const auto num_nodes = count_of_list(node.read("/sys/devices/system/node/online").value_or("0"));
  const bool has_threads = node.read_number(kCpus + "/smt/active").value_or(0) == 1;
  std::string model = field_of(info, "model name");
  if (model.empty()) model = "processor of unknown model";
  Finding finding{.check = "cpu", .subject = {}, .value = model + ", " + counted(num_online, "core")};
  finding.value += has_threads ? " (hyper-threads)" : "";
  finding.value += ", " + counted(num_nodes, "NUMA node");
  finding.data = {{"model", model},
                  {"cores", num_online},
                  {"cores_allowed", num_allowed},
                  {"numa_nodes", num_nodes},
                  {"hyper_threads", has_threads}};
  if (quota > 0) finding.data["cores_of_control_group"] = quota;
  if (num_allowed < num_online) finding.value += "; this process may use " + std::to_string(num_allowed);
  if (quota > 0 && quota < static_cast<double>(num_allowed))
    finding.value += "; the control group gives time of " + fixed(quota, 1);
  const bool is_bound = num_allowed < num_online;
  if (quota > 0 && quota + 0.5 < static_cast<double>(num_allowed)) {
    finding.verdict = Verdict::kWarning;
    finding.remedy = "Threads beyond the limit are stopped in turns: set OMP_NUM_THREADS to at most " +
                     std::to_string(std::max<std::int64_t>(1, std::llround(std::floor(quota)))) +
                     ", or raise the CPU limit of the job (--cpus-per-task).";
  } else if (is_bound && num_allowed == 1) {
    finding.verdict = Verdict::kWarning;
    finding.remedy =
        "Data loading, export and training share one core: ask for more (--cpus-per-task), see --cpu-bind.";
  } else if (is_bound) {
    finding.verdict = Verdict::kNote;
  }
  return finding;
}

Findings speed_findings(const Node& node) {
  const Frequency frequency = read_frequency(node);
  Findings findings;
  if (!frequency.governors.empty()) {
    Finding finding{.check = "cpu", .subject = "governor", .value = *frequency.governors.begin()};
    finding.data = {{"governors", frequency.governors}};
    if (frequency.governors.contains("powersave") && !node.exists("/sys/devices/system/cpu/intel_pstate")) {
      finding.value = "powersave on some or all cores";
      finding.verdict = Verdict::kWarning;
      finding.remedy = "cpupower frequency-set -g performance";
    }
    if (frequency.most_khz > 0 && frequency.limit_khz > 0 && 10 * frequency.limit_khz < 9 * frequency.most_khz) {
      finding.value += "; limited to " + fixed(static_cast<double>(frequency.limit_khz) * 1e-6, 2) + " GHz of " +
                       fixed(static_cast<double>(frequency.most_khz) * 1e-6, 2) + " GHz";
      finding.verdict = Verdict::kWarning;
      finding.remedy = "Raise scaling_max_freq (cpupower frequency-set -u).";
    }
    findings.push_back(finding);
  }
  if (frequency.num_throttled > 0) {
    findings.push_back({.check = "cpu",
                        .subject = "throttling",
                        .value = std::to_string(frequency.num_throttled) + " times too hot since the machine started",
                        .verdict = Verdict::kWarning,
                        .remedy = "Check fans and power of this node; compare its gemm line with the others'.",
                        .data = {{"events", frequency.num_throttled}}});
  }
  return findings;
}

}  // namespace

Findings check_cpu(const Node& node) {
  Findings findings{cores_finding(node)};
  for (Finding& finding : speed_findings(node)) findings.push_back(std::move(finding));
  return findings;
}

}  // namespace pharos::launch
