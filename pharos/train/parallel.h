// A rank's place in the job: the layout, its coordinates, and the groups it communicates in.
#pragma once

#include <chrono>
#include <cstdint>

#include "pharos/comm/mesh.h"
#include "pharos/comm/world.h"
#include "pharos/config/run_config.h"
#include "pharos/model/transformer.h"
#include "pharos/pipeline/executor.h"

namespace pharos::train {

/// A collective may take this much longer than the watchdog waits, so that the watchdog speaks first: it says more.
inline constexpr std::chrono::seconds kWatchdogLead{10};

/// How long ranks wait for each other in a step, once the first one has taken `first_step`:
/// dist.distributed_timeout_seconds_after_init, or ten first steps, at least two minutes and at most
/// dist.distributed_timeout_minutes.
std::chrono::milliseconds step_timeout(const config::DistConfig& dist, std::chrono::milliseconds first_step);

struct Parallel {
  /// Makes the groups that `config` uses. Every rank of `world` must do so; both arguments outlive the result.
  Parallel(comm::World& world, const config::RunConfig& config);

  bool is_first() const { return rank == 0; }
  pipeline::Channels channels() const;

  comm::World& world;
  std::int64_t rank;
  comm::Mesh mesh;
  comm::Group& all;
  comm::Group& tensor;
  comm::Group& data;        ///< different samples
  comm::Group& context;     ///< different tokens of the same samples
  comm::Group& pipeline;    ///< different stages
  comm::Group& losses;      ///< all ranks between which the tokens of a global batch and the stages are divided
  comm::Group* ascending;   ///< transfers to higher ranks of the pipeline; null with one
  comm::Group* descending;  ///< to lower ranks
  /// Between which the model is divided. Those of experts are made on every rank of a model that has some, also where a
  /// stage has none.
  model::ParallelGroups model;
};

}  // namespace pharos::train
