#include "pharos/train/report/network_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "pharos/base/text.h"
#include "pharos/profile/counters/publish.h"

namespace pharos::train {
namespace {

using profile::Port;
using profile::PortKind;
using profile::PortTraffic;

constexpr std::size_t kNamedPorts = 4, kNamedEvents = 8;

const char* name_of(PortKind kind) {
  switch (kind) {
    case PortKind::kInfiniband:
      return "InfiniBand";
    case PortKind::kNvlink:
      return "NVLink";
    case PortKind::kNetwork:
      break;
  }
  return "Ethernet";
}

double moved_bytes(const profile::Traffic& traffic) {
  double bytes = 0;
  for (const char* label : {"transmit", "receive"}) {
    if (const auto found = traffic.bytes.find(label); found != traffic.bytes.end())
      bytes += static_cast<double>(found->second);
  }
  return bytes;
}

/// "InfiniBand (16 ports) transmit 11.2 GiB/s, receive 11.1 GiB/s, busiest mlx5_0/1, least busy mlx5_7/1".
std::string render_kind(PortKind kind, const PortTraffic& ports, double seconds) {
  std::map<std::string_view, std::uint64_t> sums;
  std::size_t num_ports = 0;
  const PortTraffic::value_type *busiest = nullptr, *least = nullptr;
  for (const auto& entry : ports) {
    if (entry.first.kind != kind) continue;
    ++num_ports;
    for (const auto& [label, bytes] : entry.second.bytes) sums[label] += bytes;
    if (busiest == nullptr || moved_bytes(entry.second) > moved_bytes(busiest->second)) busiest = &entry;
    if (least == nullptr || moved_bytes(entry.second) < moved_bytes(least->second)) least = &entry;
  }
  if (num_ports == 0) return "";
  std::string text = num_ports == 1 ? busiest->first.name() : fmt::format("{} ({} ports)", name_of(kind), num_ports);
  const char* separator = " ";
  for (const auto& [label, bytes] : sums) {
    text += fmt::format("{}{} {}/s", separator, label, base::format_bytes(static_cast<double>(bytes) / seconds));
    separator = ", ";
  }
  if (busiest != least) text += fmt::format(", busiest {}, least busy {}", busiest->first.name(), least->first.name());
  return text;
}

/// "a, b, c, d and 12 more".
std::string list_some(std::vector<std::string> names, std::size_t limit) {
  const std::size_t num_more = names.size() - std::min(names.size(), limit);
  names.resize(names.size() - num_more);
  return base::join(names, ", ") + (num_more > 0 ? fmt::format(" and {} more", num_more) : "");
}

std::string render_events(const PortTraffic& ports) {
  std::vector<std::string> events;
  for (const auto& [port, traffic] : ports) {
    for (const auto& [name, count] : traffic.events)
      events.push_back(fmt::format("{} {} +{}", port.name(), name, count));
    if (traffic.num_resets > 0)
      events.push_back(fmt::format("{} {} counters were reset", port.name(), traffic.num_resets));
  }
  return events.empty() ? "" : " | events: " + list_some(std::move(events), kNamedEvents);
}

std::string list_ports(const profile::Reading& reading) {
  std::vector<std::string> names;
  for (const auto& read : reading) names.push_back(read.port.name());
  return list_some(std::move(names), kNamedPorts);
}

}  // namespace

/// What the sampler's thread reads. Also what may hang is opened there.
struct NetworkReport::Source {
  std::filesystem::path root;
  bool is_open = false;
  profile::ReadCounters nvlink = nullptr;
  std::string why_no_nvlink = "";  ///< before the first reading is there: of the thread alone

  profile::Reading read() {
    if (!std::exchange(is_open, true)) nvlink = profile::open_nvlink(why_no_nvlink);
    profile::Reading reading = profile::read_counter_tree(root);
    if (nvlink == nullptr) return reading;
    profile::Reading links = nvlink();
    std::move(links.begin(), links.end(), std::back_inserter(reading));
    return reading;
  }
};

NetworkReport::NetworkReport(const config::RunConfig& config, std::int64_t local_rank, std::int64_t step,
                             Console& console, MetricsLog& metrics)
    : log_interval_(config.logger.log_interval), profiling_(config.profiling), console_(console), metrics_(metrics) {
  if (!profiling_.network_counters || local_rank != 0) return;
  source_ = std::make_shared<Source>(Source{.root = profiling_.network_counters_root});
  sampler_.emplace([source = source_] { return source->read(); }, profiling_.network_counters_hz, step,
                   profile::publish);
  announce();
  if (!is_announced_ && sampler_->failure().empty())
    console_.line("warning: network counters: a device does not answer; the run goes on, and counts from its answer");
}

void NetworkReport::announce() {
  const auto found = sampler_->first_reading();
  if (!found || std::exchange(is_announced_, true)) return;
  console_.line(found->empty() ? fmt::format("warning: network counters: '{}' has no device whose counters are known",
                                             profiling_.network_counters_root)
                               : fmt::format("network counters: {} ports ({}), {:g} readings a second", found->size(),
                                             list_ports(*found), profiling_.network_counters_hz));
  if (!source_->why_no_nvlink.empty()) console_.line("network counters: no NVLink, " + source_->why_no_nvlink);
}

void NetworkReport::report_failure() {
  const std::string failure = sampler_->failure();
  if (failure.empty() || std::exchange(has_failed_, true)) return;
  console_.line("warning: network counters are read no more: " + failure);
}

void NetworkReport::write() {
  if (!sampler_) return;
  announce();
  write(sampler_->take());
  report_failure();
}

void NetworkReport::after_step(std::int64_t step) {
  if (sampler_) sampler_->mark(step);
}

void NetworkReport::finish() {
  if (!sampler_) return;
  const auto steps = sampler_->finish();
  announce();
  write(steps);
  report_failure();
  sampler_.reset();
  if (interval_.last_step > 0) print();
}

void NetworkReport::write(const std::vector<profile::StepTraffic>& steps) {
  for (const profile::StepTraffic& part : steps) {
    if (part.ports.empty()) continue;  // no device, or none any more: there is nothing to say
    append(part);
    if (interval_.last_step == 0) interval_.first_step = part.first_step;
    interval_.last_step = part.last_step;
    interval_.duration_ns += part.duration_ns;
    profile::add(interval_.ports, part.ports);
    if (log_interval_ > 0 && part.last_step / log_interval_ > (part.first_step - 1) / log_interval_) print();
  }
}

void NetworkReport::append(const profile::StepTraffic& steps) {
  nlohmann::json bytes = nlohmann::json::object(), events = nlohmann::json::object();
  for (const auto& [port, traffic] : steps.ports) {
    nlohmann::json counted = nlohmann::json::object();
    for (const auto& [label, count] : traffic.bytes) counted[std::string(label)] = count;
    bytes[port.name()] = std::move(counted);
    for (const auto& [name, count] : traffic.events) events[port.name()][std::string(name)] = count;
  }
  nlohmann::json line = {{"step", steps.last_step},
                         {"network_seconds", static_cast<double>(steps.duration_ns) / 1e9},
                         {"network_bytes", std::move(bytes)}};
  if (steps.first_step != steps.last_step) line["network_first_step"] = steps.first_step;
  if (!events.empty()) line["network_events"] = std::move(events);
  metrics_.append(line);
}

void NetworkReport::print() {
  const double seconds = std::max(static_cast<double>(interval_.duration_ns) / 1e9, 1e-9);
  std::string text = fmt::format("network, steps {} to {}", interval_.first_step, interval_.last_step);
  for (const PortKind kind : {PortKind::kInfiniband, PortKind::kNvlink, PortKind::kNetwork}) {
    if (const std::string part = render_kind(kind, interval_.ports, seconds); !part.empty()) text += " | " + part;
  }
  console_.log_line(text + render_events(interval_.ports));
  interval_ = {};
}

}  // namespace pharos::train
