// Whether a folder is the same one on all nodes.
#pragma once

#include <string>
#include <vector>

#include "pharos/comm/world.h"
#include "pharos/launch/doctor/finding.h"

namespace pharos::cli {

/// Rank 0 writes a file into `folder`, the others read it there. Every rank calls it; findings on rank 0.
launch::Findings check_shared_token(comm::World& world, const std::vector<std::string>& hosts,
                                    const std::string& folder);

}  // namespace pharos::cli
