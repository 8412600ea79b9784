// Memory and the limits of a process that training runs into.
#include <sys/statvfs.h>

#include <algorithm>
#include <optional>
#include <sstream>

#include "pharos/base/text.h"
#include "pharos/launch/doctor/checks.h"
#include "pharos/launch/doctor/checks/control_group.h"

namespace pharos::launch {
namespace {

std::string bytes(std::int64_t count) { return base::format_bytes(static_cast<double>(count)); }

/// Of a line that counts KiB; nothing where there is none, or no amount that a machine can have.
std::optional<std::int64_t> bytes_of(const std::string& meminfo, const std::string& key) {
  constexpr std::int64_t kMost = std::int64_t{1} << 50;
  const auto kibibytes = number_of(field_of(meminfo, key));
  if (!kibibytes || *kibibytes < 0 || *kibibytes > kMost) return std::nullopt;
  return *kibibytes * 1024;
}

Finding unknown(const std::string& subject) {
  return {.check = "memory",
          .subject = subject,
          .value = "unknown",
          .verdict = Verdict::kNote,
          .remedy = "/proc/meminfo does not say it: is /proc mounted?",
          .data = {}};
}

Finding memory_finding(const Node& node, const std::string& meminfo) {
  const auto total_or_none = bytes_of(meminfo, "MemTotal:"), available_or_none = bytes_of(meminfo, "MemAvailable:");
  if (total_or_none.value_or(0) == 0 || !available_or_none) return unknown("");
  const std::int64_t total = *total_or_none, available = *available_or_none;
  const auto limit = control_group_memory_bytes(node);
  Finding finding{.check = "memory",
                  .subject = {},
                  .value = bytes(available) + " available of " + bytes(total),
                  .verdict = Verdict::kOk,
                  .remedy = {},
                  .data = {{"total_bytes", total}, {"available_bytes", available}}};
  if (limit) {
    finding.data["control_group_limit_bytes"] = *limit;
    finding.value += "; the control group allows " + bytes(*limit);
    if (*limit < total / 2) finding.verdict = Verdict::kNote;
  }
  if (available < total / 4) {
    finding.verdict = Verdict::kWarning;
    finding.remedy = "Something else holds most of the memory: see `ps aux --sort -rss`.";
  }
  return finding;
}

Finding swap_finding(const std::string& meminfo) {
  const auto total_or_none = bytes_of(meminfo, "SwapTotal:"), free = bytes_of(meminfo, "SwapFree:");
  if (!total_or_none || !free) return unknown("swap");
  const std::int64_t total = *total_or_none, used = total - *free;
  Finding finding{.check = "memory",
                  .subject = "swap",
                  .value = total == 0 ? "none" : bytes(used) + " used of " + bytes(total),
                  .verdict = Verdict::kOk,
                  .remedy = {},
                  .data = {{"total_bytes", total}, {"used_bytes", used}}};
  constexpr std::int64_t kMuch = std::int64_t{256} << 20;
  if (used > kMuch) {
    finding.verdict = Verdict::kWarning;
    finding.remedy = "Memory was short on this node: end what fills it, then swapoff -a && swapon -a.";
  }
  return finding;
}

Finding huge_pages_finding(const Node& node, const std::string& meminfo) {
  const std::string transparent = node.read("/sys/kernel/mm/transparent_hugepage/enabled").value_or("");
  const auto begin = transparent.find('['), end = transparent.find(']');
  const std::string mode =
      begin < end && end != std::string::npos ? transparent.substr(begin + 1, end - begin - 1) : "unknown";
  const std::int64_t num_reserved = number_of(field_of(meminfo, "HugePages_Total:")).value_or(0);
  return {.check = "memory",
          .subject = "huge pages",
          .value = "transparent: " + mode + "; reserved: " + std::to_string(num_reserved),
          .verdict = mode == "never" ? Verdict::kNote : Verdict::kOk,
          .remedy = mode == "never" ? "On a CPU, madvise or always is some per cent faster." : "",
          .data = {{"transparent", mode}, {"reserved_pages", num_reserved}}};
}

/// NCCL and data loaders share memory there; a container's usual 64 MiB is too little.
Finding shared_memory_finding(const Node& node) {
  Finding finding{.check = "memory", .subject = "/dev/shm", .value = "missing"};
  struct statvfs space {};
  if (::statvfs(node.path("/dev/shm").c_str(), &space) != 0) {
    finding.verdict = Verdict::kWarning;
    finding.remedy = "NCCL shares memory between the GPUs of a node there: mount a tmpfs on /dev/shm.";
    return finding;
  }
  const auto size = static_cast<std::int64_t>(space.f_blocks * space.f_frsize);
  const auto free = static_cast<std::int64_t>(space.f_bavail * space.f_frsize);
  finding.value = bytes(free) + " free of " + bytes(size);
  finding.data = {{"size_bytes", size}, {"free_bytes", free}};
  constexpr std::int64_t kLittle = std::int64_t{1} << 30;
  if (size < kLittle || free < kLittle / 4) {
    finding.verdict = Verdict::kWarning;
    finding.remedy =
        "NCCL needs some hundred MiB for the GPUs of a node: start the container with --shm-size=8g or "
        "--ipc=host, or remove files that were left in /dev/shm.";
  }
  return finding;
}

/// Soft limit of a line of /proc/self/limits: a number or "unlimited"; empty when the line is missing.
std::string soft_limit(const std::string& limits, const std::string& name) {
  std::istringstream rest(field_of(limits, name));
  std::string soft;
  rest >> soft;
  return soft;
}

struct Limit {
  const char* name;     ///< as the kernel writes it
  const char* subject;  ///< as we do
  std::int64_t least;   ///< that does no harm
  bool is_bytes;
  const char* remedy;
};

const Limit kLimits[] = {
    {"Max locked memory", "locked memory", std::int64_t{1} << 30, true,
     "RDMA registers (locks) its buffers and fails beyond the limit: set memlock to unlimited in "
     "/etc/security/limits.conf, LimitMEMLOCK=infinity for slurmd, --ulimit memlock=-1 for a container."},
    {"Max open files", "open files", 4096, false,
     "Connections between ranks and files of data sets need descriptors: ulimit -n 65536, or LimitNOFILE for slurmd."},
    {"Max processes", "processes", 4096, false, "Every rank has tens of threads: raise ulimit -u."},
};

}  // namespace

Findings check_memory(const Node& node) {
  const std::string meminfo = node.read("/proc/meminfo").value_or("");
  return {memory_finding(node, meminfo), swap_finding(meminfo), huge_pages_finding(node, meminfo),
          shared_memory_finding(node)};
}

Findings check_limits(const Node& node) {
  const std::string limits = node.read("/proc/self/limits").value_or("");
  const bool has_rdma = !node.list("/sys/class/infiniband").empty();
  Findings findings;
  for (const Limit& limit : kLimits) {
    const std::string soft = soft_limit(limits, limit.name);
    const auto number = number_of(soft);
    Finding finding{.check = "limits", .subject = limit.subject, .value = soft.empty() ? "unknown" : soft};
    if (number) {
      if (limit.is_bytes) finding.value = bytes(*number);
      finding.data = {{"limit", *number}};
      if (*number < limit.least) {
        const bool matters = !limit.is_bytes || has_rdma;
        finding.verdict = matters ? Verdict::kWarning : Verdict::kNote;
        finding.remedy = matters ? limit.remedy : "";
        if (limit.is_bytes && has_rdma) finding.verdict = Verdict::kFailure;
      }
    }
    findings.push_back(finding);
  }
  return findings;
}

}  // namespace pharos::launch
