// The processes of a job: rendezvous, small texts exchanged over the store, and the groups among them.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pharos/comm/group.h"
#include "pharos/comm/mesh.h"
#include "pharos/comm/rank_environment.h"

namespace pharos::comm {

struct WorldOptions {
  at::Device device = at::kCPU;                                             ///< CPU: Gloo; CUDA: NCCL for tensors there
  std::chrono::milliseconds rendezvous_timeout = std::chrono::minutes(10);  ///< until all ranks have arrived
  std::chrono::milliseconds timeout = std::chrono::minutes(10);             ///< of each collective, see set_timeout()
};

/// Why a rank cannot go on.
struct Failure {
  bool is_user_error = false;
  std::string text;
};

class World {
 public:
  /// Meets the other ranks at the store; with one rank there is neither store nor traffic. UserError, saying what to
  /// check: the port is taken, the master cannot be reached in time, a rank came twice, ranks disagree about the world
  /// size, not all ranks came (their numbers are listed).
  World(const RankEnvironment& environment, const WorldOptions& options);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  std::int64_t rank() const;
  std::int64_t size() const;
  const RankEnvironment& environment() const;
  at::Device device() const;

  /// Every rank's text for `key`, in rank order. Every rank must call it, once per key, before any group is needed.
  /// With a `failure` of this rank, ranks that wait for it in vain here or in announce(), whatever their key, stop
  /// waiting: they throw UserError or TrainingError, "Rank N failed: TEXT".
  std::vector<std::string> exchange(const std::string& key, const std::string& text,
                                    const std::optional<Failure>& failure = std::nullopt);
  /// Rank 0's text on every rank.
  std::string announce(const std::string& key, const std::string& text);

  /// The group of `ranks` (global, ascending; this rank among them), made at the first call, which all its members must
  /// make in the same order; later calls return the same one. `name` must be unique to this set on this rank.
  Group& group(const std::string& name, const std::vector<std::int64_t>& ranks);
  /// The group of this rank along `dims` of `mesh`, called by the dimensions: "tp", "dp-cp".
  Group& group(const Mesh& mesh, const std::vector<MeshDim>& dims);
  /// All ranks.
  Group& all();
  /// Names and ranks of the groups made so far.
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> groups() const;

  /// From now on for every collective of every group (bridge-config 1.11: tight after the first step).
  void set_timeout(std::chrono::milliseconds timeout);

  /// Leaves in good order: waits until every rank is here (at most a few seconds), so that nobody sees a peer go.
  void leave();
  /// Leaves at once after a failure of this rank alone: calls under way are not waited for (peers may be alive and
  /// never come), their groups and buffers stay until the process ends. Only rank() and size() may be called from then
  /// on.
  void abandon();

 private:
  struct State;
  std::unique_ptr<State> state_;
  bool is_abandoned_ = false;
};

}  // namespace pharos::comm
