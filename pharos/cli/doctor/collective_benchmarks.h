// Speed of communication between the ranks of a job.
#pragma once

#include <string>
#include <vector>

#include "pharos/comm/world.h"
#include "pharos/launch/doctor/finding.h"

namespace pharos::cli {

/// All-reduce, all-gather and all-to-all over all ranks: time of a small call, and bus bandwidth of a large one (bytes
/// that each rank must send at least, per second: 2(n - 1)/n × bytes for all-reduce, (n - 1)/n × bytes for the others,
/// as nccl-tests counts). Every rank calls it; findings on rank 0.
launch::Findings measure_collectives(comm::World& world);

/// Transfers between two ranks at a time, every pair once (at most 16 rounds). A rank's speed is that of its best pair:
/// the peers of a slow rank have better ones, it has none. Every rank calls it; the finding is on rank 0.
launch::Findings measure_pairs(comm::World& world, const std::vector<std::string>& hosts);

}  // namespace pharos::cli
