// Where samples go: the metrics of telemetry, and the ring of this process.
#pragma once

#include "pharos/profile/counters/counter_sampler.h"

namespace pharos::profile {

/// Adds to megatron.network.* where this rank exports metrics, and writes the counter event "network" into the ring of
/// the calling thread: lists of the same length, network.ports (Port::name()) and for each label of bytes
/// network.LABEL_bytes (zero for ports that do not count it).
void publish(const SampledTraffic& sampled);

}  // namespace pharos::profile
