#include "pharos/lens/metrics/network_metrics.h"

#include "pharos/lens/metrics/training_metrics.h"

namespace pharos::lens {
namespace {

InstrumentOptions options_of(std::string_view name) {
  const MetricDescription& metric = find_metric(name);
  return {.description = std::string(metric.description), .unit = std::string(metric.unit)};
}

struct NetworkInstruments {
  explicit NetworkInstruments(Meter& meter)
      : bytes(meter.create_counter<std::int64_t>("megatron.network.bytes", options_of("megatron.network.bytes"))),
        rate(meter.create_gauge<double>("megatron.network.bytes_per_second",
                                        options_of("megatron.network.bytes_per_second"))),
        events(meter.create_counter<std::int64_t>("megatron.network.events", options_of("megatron.network.events"))) {}

  Counter<std::int64_t> bytes;
  Gauge<double> rate;
  Counter<std::int64_t> events;
};

}  // namespace

void record_network_metrics(Meter& meter, std::span<const NetworkPoint> points, double seconds) {
  const auto instruments = meter.companion<NetworkInstruments>();
  for (const NetworkPoint& point : points) {
    const Attribute device("network.device", point.device);
    const Attribute port = point.port.empty() ? Attribute() : Attribute("network.port", point.port);
    const Attribute what(point.is_bytes ? "network.direction" : "network.event", point.what);
    const auto count = static_cast<std::int64_t>(point.count);
    if (!point.is_bytes) {
      instruments->events.add(count, {device, port, what});
      continue;
    }
    instruments->bytes.add(count, {device, port, what});
    instruments->rate.set(static_cast<double>(point.count) / seconds, {device, port, what});
  }
}

}  // namespace pharos::lens
