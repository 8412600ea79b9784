// Memory behind a session: the ring file, or anonymous memory where there is no file.
#pragma once

#include <cstddef>
#include <filesystem>

namespace pharos::lens::internal {

struct Session;

/// Where the ring of the run before is kept.
std::filesystem::path previous_ring_path(std::filesystem::path path);

/// Makes the ring file of the session (an existing one becomes `rank_N.previous.ring`) and maps header and names. A
/// folder that cannot be written is a UserError; a full disk is said on standard error and leaves the session in
/// memory.
void map_header(Session& session);

/// Zeroed memory for one more thread, backed by reserved blocks of the file, so that a disk that fills up later cannot
/// kill the writer. Null when there is no memory. Call under the session's mutex.
std::byte* map_region(Session& session);

}  // namespace pharos::lens::internal
