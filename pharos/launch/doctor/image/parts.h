// Where each part of an image is, and how it tells its version.
#pragma once

#include <optional>
#include <string>

#include "pharos/launch/doctor/image/image.h"

namespace pharos::launch {

/// Looks for the part `name` of a table of versions (NCCL_VERSION, …). nullopt: nothing is known about it. `wanted`:
/// its version in the table, for parts that only show it as text in their file.
std::optional<FoundPart> find_part(const Node& node, const std::string& name, const std::string& wanted,
                                   const std::string& libtorch_version);

}  // namespace pharos::launch
