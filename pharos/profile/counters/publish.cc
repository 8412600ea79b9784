#include "pharos/profile/counters/publish.h"

#include <map>
#include <string>
#include <vector>

#include "pharos/lens/life/telemetry.h"
#include "pharos/lens/metrics/network_metrics.h"
#include "pharos/lens/span.h"

namespace pharos::profile {
namespace {

void record_metrics(const SampledTraffic& sampled) {
  lens::Telemetry* const telemetry = lens::Telemetry::get();
  lens::Meter* const meter = telemetry != nullptr ? telemetry->meter() : nullptr;
  const double seconds = static_cast<double>(sampled.end_ns - sampled.start_ns) / 1e9;
  if (meter == nullptr || seconds <= 0) return;
  std::vector<lens::NetworkPoint> points;
  for (const auto& [port, traffic] : sampled.ports) {
    for (const auto& [label, count] : traffic.bytes) points.push_back({port.device, port.port, label, count, true});
    for (const auto& [label, count] : traffic.events) points.push_back({port.device, port.port, label, count, false});
  }
  lens::record_network_metrics(*meter, points, seconds);
}

void record_event(const SampledTraffic& sampled) {
  if (!lens::is_telemetry_active() || sampled.ports.empty()) return;
  std::vector<std::string> names;
  std::map<std::string, std::vector<std::int64_t>> bytes;
  for (const auto& [port, traffic] : sampled.ports) {
    for (const auto& [label, count] : traffic.bytes) {
      auto& list = bytes["network." + std::string(label) + "_bytes"];
      list.resize(names.size());
      list.push_back(static_cast<std::int64_t>(count));
    }
    names.push_back(port.name());
  }
  std::vector<lens::Attribute> attributes{{"network.ports", names}};
  for (auto& [key, list] : bytes) {
    list.resize(names.size());
    attributes.emplace_back(key, list);
  }
  lens::record_counters("network", sampled.start_ns, sampled.end_ns, attributes);
}

}  // namespace

void publish(const SampledTraffic& sampled) {
  record_metrics(sampled);
  record_event(sampled);
}

}  // namespace pharos::profile
