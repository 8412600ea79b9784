// Which rank this process is, as whoever started it said: torchrun's variables or SLURM's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "pharos/lens/variables/environment.h"

namespace pharos::comm {

struct RankEnvironment {
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
  std::int64_t local_rank = 0;        ///< within the node
  std::int64_t local_world_size = 1;  ///< ranks of this node
  std::string master_address = "127.0.0.1";
  std::uint16_t master_port = 0;     ///< of the rendezvous store, which rank 0 serves; 0 only where world_size is 1
  std::optional<int> listen_socket;  ///< rank 0: an open socket that listens on master_port (the local launcher's)
  std::string source;                ///< "RANK, WORLD_SIZE, …", "SLURM_PROCID, …" or "one process", for messages
};

/// From RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT; where RANK and WORLD_SIZE are absent
/// from SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_NTASKS_PER_NODE, the first host of SLURM_STEP_NODELIST (or
/// SLURM_JOB_NODELIST) and a port that follows from SLURM_JOB_ID and step; else one process. LOCAL_RANK falls back to
/// the rank on a single node. PHAROS_LISTEN_SOCKET names an inherited socket. A SLURM batch script or `salloc` shell
/// (no SLURM_STEP_ID, or one task) is one process. UserError naming the variable: half of a pair is missing, a value is
/// no number, a rank is not below its world size, several ranks without an address or port.
RankEnvironment read_rank_environment(const lens::Environment& environment);

}  // namespace pharos::comm
