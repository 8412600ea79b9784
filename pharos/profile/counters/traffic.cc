#include "pharos/profile/counters/traffic.h"

namespace pharos::profile {

Growth growth_of(std::uint64_t previous, std::uint64_t current, int width_bits) {
  if (current >= previous) return {current - previous};
  constexpr std::uint64_t kTop32 = std::uint64_t{1} << 31, kTop64 = std::uint64_t{1} << 63;
  if (width_bits == 32 && previous >> 32 == 0 && previous >= kTop32 && current < kTop32)
    return {(std::uint64_t{1} << 32) - previous + current};
  if (previous >= kTop64 && current < kTop64) return {current - previous};  // modulo 2^64
  return {current, true};
}

void Traffic::operator+=(const Traffic& other) {
  for (const auto& [label, count] : other.bytes) bytes[label] += count;
  for (const auto& [label, count] : other.events) events[label] += count;
  num_resets += other.num_resets;
}

void add(PortTraffic& sum, const PortTraffic& more) {
  for (const auto& [port, traffic] : more) sum[port] += traffic;
}

PortTraffic TrafficMeter::advance(const Reading& reading) {
  PortTraffic all;
  for (const PortReading& read : reading) {
    Traffic& traffic = all[read.port];
    for (const CounterValue& value : read.values) {
      const auto [last, is_new] = last_.try_emplace({read.port, value.kind}, value.count);
      const Growth growth = growth_of(last->second, value.count, value.kind->width_bits);
      last->second = value.count;
      if (is_new && value.kind->unit_bytes == 0) continue;
      traffic.num_resets += growth.is_reset;
      if (value.kind->unit_bytes != 0) {
        traffic.bytes[value.kind->label] += growth.count * value.kind->unit_bytes;
      } else if (growth.count != 0) {
        traffic.events[value.kind->label] += growth.count;
      }
    }
  }
  return all;
}

}  // namespace pharos::profile
