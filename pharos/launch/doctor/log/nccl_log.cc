#include "pharos/launch/doctor/log/nccl_log.h"

#include <algorithm>
#include <regex>
#include <sstream>

#include "pharos/base/text.h"
#include "pharos/base/untrusted/printable.h"
#include "pharos/launch/doctor/node.h"

namespace pharos::launch {
namespace {

constexpr std::size_t kMostBytes = 300;  ///< of a name or a message
constexpr std::size_t kMostNames = 8;    ///< in one list

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

/// What follows `key` in the line, cut where it goes on without end; nullopt when the line does not contain it.
std::optional<std::string> text_behind(std::string_view line, std::string_view key) {
  const auto found = line.find(key);
  if (found == std::string_view::npos) return std::nullopt;
  return base::shortened(trimmed(line.substr(found + key.size())), kMostBytes);
}

bool contains(std::string_view line, std::string_view text) { return line.find(text) != std::string_view::npos; }

std::string first_word(const std::string& text) { return text.substr(0, text.find_first_of(" \t(,")); }

/// Numbers that differ from line to line (addresses, identifiers) are left out, so that equal warnings count as one.
std::string general_form(const std::string& text) {
  static const std::regex numbers(R"(0x[0-9a-fA-F]+|<\d+>)");
  return std::regex_replace(text, numbers, "…");
}

void read_network(std::string_view line, NcclLog& log) {
  if (const auto network = text_behind(line, "Using network ")) ++log.networks[*network];
  for (const std::string_view key : {"Selected provider is ", "Selected Provider is "}) {
    if (const auto provider = text_behind(line, key)) ++log.providers[first_word(*provider)];
  }
  if (const auto version = text_behind(line, "NCCL version ")) log.nccl_version = first_word(*version);
  for (const std::string_view key : {"Using aws-ofi-nccl ", "Initializing aws-ofi-nccl "}) {
    if (const auto version = text_behind(line, key)) log.plugin_version = first_word(*version);
  }
  if (contains(line, "via NET/")) {
    if (contains(line, "via NET/Socket")) ++log.num_socket_channels;
    if (contains(line, "/GDRDMA")) ++log.num_direct_channels;
  }
  if (contains(line, "NET/Plugin") && (contains(line, "libnccl-net") || contains(line, "No plugin found")))
    log.lacks_plugin = log.lacks_plugin || contains(line, "cannot open") || contains(line, "Could not find") ||
                       contains(line, "No plugin found");
  if (contains(line, "NET/OFI") &&
      (contains(line, "Couldn't find any optimal provider") || contains(line, "Could not find any optimal provider") ||
       contains(line, "No eligible providers were found")))
    log.has_plugin_failed = true;
}

void read_variable(std::string_view line, NcclLog& log) {
  const auto value = text_behind(line, " set by environment to ");
  if (!value) return;
  const std::string_view before = trimmed(line.substr(0, line.find(" set by environment to ")));
  std::string text = *value;
  if (text.ends_with('.')) text.pop_back();
  log.variables[base::shortened(before.substr(before.rfind(' ') + 1), kMostBytes)] = text;
}

void read_gin(std::string_view line, NcclLog& log) {
  if (contains(line, "Device API initialized")) ++log.num_device_api;
  const auto mode = text_behind(line, "GIN proxy mode enabled");
  if (!mode) return;
  const auto digit = mode->find_first_of("0123456789");
  ++log.gin_types[digit == std::string::npos ? 0 : number_of(mode->substr(digit)).value_or(0)];
}

std::string listed(const std::map<std::string, std::int64_t>& counts) {
  std::vector<std::string> parts;
  for (const auto& [name, count] : counts) {
    if (parts.size() == kMostNames) {
      parts.push_back("and " + std::to_string(counts.size() - kMostNames) + " more");
      break;
    }
    parts.push_back(name + " (" + counted(count, "line") + ")");
  }
  return base::join(parts, ", ");
}

Finding judge_network(const NcclLog& log) {
  Finding finding{.check = "log", .subject = "network", .value = listed(log.networks)};
  finding.data = {{"networks", log.networks}, {"providers", log.providers}};
  if (log.networks.empty()) {
    finding.value = "no line \"Using network …\"";
    finding.verdict = Verdict::kWarning;
    finding.remedy = "Run with NCCL_DEBUG=INFO (and NCCL_DEBUG_SUBSYS=INIT,NET,ENV), and give the logs of all ranks.";
    return finding;
  }
  const bool any_socket = log.networks.contains("Socket");
  if (any_socket && log.networks.size() > 1) {
    finding.verdict = Verdict::kFailure;
    finding.remedy = "Some ranks took sockets and others did not: run `pharos doctor --only provider` on every node.";
  } else if (any_socket) {
    const auto chosen = log.variables.find("NCCL_NET");
    const bool is_wanted = chosen != log.variables.end() && chosen->second == "Socket";
    const bool is_broken = log.has_plugin_failed || (log.lacks_plugin && log.variables.contains("NCCL_NET_PLUGIN"));
    finding.verdict = is_wanted || !is_broken ? Verdict::kWarning : Verdict::kFailure;
    if (is_broken) finding.value += ", after the network plug-in did not load or start";
    finding.remedy = is_wanted
                         ? "unset NCCL_NET where there is a faster network."
                         : "Right only where there is no RDMA device: see `pharos doctor --only network,provider`.";
  } else if (log.networks.size() > 1) {
    finding.verdict = Verdict::kFailure;
    finding.remedy = "Ranks took different networks: give all nodes the same image and variables.";
  }
  return finding;
}

std::optional<Finding> judge_providers(const NcclLog& log) {
  if (log.providers.empty()) return std::nullopt;
  Finding finding{.check = "log", .subject = "provider", .value = listed(log.providers)};
  for (const auto& [provider, count] : log.providers) {
    if (!provider.starts_with("tcp") && !provider.starts_with("sockets") && provider != "shm") continue;
    finding.verdict = Verdict::kFailure;
    finding.remedy = "libfabric took a provider over sockets: export FI_PROVIDER=efa, and check the devices.";
  }
  return finding;
}

Finding judge_gin(const NcclLog& log, bool expects_gin) {
  Finding finding{.check = "log", .subject = "GIN", .value = {}};
  finding.data = {{"device_api_lines", log.num_device_api}, {"gin_types", nlohmann::json::object()}};
  for (const auto& [type, count] : log.gin_types) finding.data["gin_types"][std::to_string(type)] = count;
  const auto asked = log.variables.find("NCCL_GIN_TYPE");
  const bool is_asked = expects_gin || asked != log.variables.end();
  const bool is_up = log.num_device_api > 0 && !log.gin_types.empty();
  if (is_up) {
    const std::int64_t type = log.gin_types.begin()->first;
    finding.value = "Device API initialized, proxy mode (type " + std::to_string(type) + ")";
    const bool is_other = log.gin_types.size() > 1 || type != 2;
    if (is_other) {
      finding.value += log.gin_types.size() > 1 ? ", and other types" : "";
      finding.verdict = Verdict::kWarning;
      finding.remedy = "export NCCL_GIN_TYPE=2 on all nodes.";
    } else if (log.num_device_api != log.gin_types.begin()->second) {
      finding.value += ", but " + counted(log.num_device_api, "rank") + " have the Device API and " +
                       std::to_string(log.gin_types.begin()->second) + " GIN";
      finding.verdict = Verdict::kFailure;
      finding.remedy = "GIN came up on some ranks only: give all nodes the same image and variables.";
    }
    return finding;
  }
  finding.value = log.num_device_api > 0 ? "Device API initialized, but no GIN" : "not in the log";
  finding.verdict = is_asked ? Verdict::kFailure : Verdict::kNote;
  finding.remedy = is_asked
                       ? "GIN needs NCCL 2.29 or newer with its plug-in, gdrcopy (/dev/gdrdrv), NCCL_GIN_TYPE=2 and "
                         "DEEP_EP_BACKEND=nccl on every node."
                       : "Say --expect-gin where DeepEP runs over NCCL.";
  return finding;
}

Findings judge_warnings(const NcclLog& log) {
  constexpr std::size_t kMost = 10;
  Findings findings;
  for (const auto& [text, count] : log.warnings) {
    if (findings.size() == kMost) break;
    findings.push_back({.check = "log",
                        .subject = "warning",
                        .value = text + (count > 1 ? " (" + std::to_string(count) + " times)" : ""),
                        .verdict = Verdict::kWarning});
  }
  if (log.warnings.size() > kMost) {
    findings.push_back({.check = "log",
                        .subject = "warning",
                        .value = std::to_string(log.warnings.size() - kMost) + " more kinds of warnings",
                        .verdict = Verdict::kNote});
  }
  return findings;
}

}  // namespace

void read_nccl_log(std::string_view text, NcclLog& log) {
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (contains(line, "NCCL INFO") || contains(line, "NCCL WARN") || contains(line, "NCCL version"))
      log.has_nccl_lines = true;
    read_gin(line, log);
    read_network(line, log);
    read_variable(line, log);
    if (const auto warning = text_behind(line, "NCCL WARN ")) ++log.warnings[general_form(*warning)];
  }
}

Findings judge_nccl_log(const NcclLog& log, bool expects_gin) {
  if (!log.has_nccl_lines && log.num_device_api == 0 && log.gin_types.empty()) {
    return {{.check = "log",
             .subject = {},
             .value = "no line of NCCL",
             .verdict = Verdict::kFailure,
             .remedy =
                 "Run with NCCL_DEBUG=INFO and give the logs of all ranks: slurm-JOB.log or rank_N.log of the run "
                 "folder."}};
  }
  Findings findings;
  if (!log.nccl_version.empty()) findings.push_back({.check = "log", .subject = "NCCL", .value = log.nccl_version});
  if (!log.plugin_version.empty())
    findings.push_back({.check = "log", .subject = "aws-ofi-nccl", .value = log.plugin_version});
  findings.push_back(judge_network(log));
  if (auto finding = judge_providers(log)) findings.push_back(std::move(*finding));
  if (log.num_socket_channels + log.num_direct_channels > 0) {
    findings.push_back({.check = "log",
                        .subject = "channels",
                        .value = std::to_string(log.num_direct_channels) + " straight to GPU memory, " +
                                 std::to_string(log.num_socket_channels) + " over sockets"});
  }
  findings.push_back(judge_gin(log, expects_gin));
  for (Finding& finding : judge_warnings(log)) findings.push_back(std::move(finding));
  return findings;
}

}  // namespace pharos::launch
