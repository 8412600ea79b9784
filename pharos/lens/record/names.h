// Interned span names: one number per text for the life of the process, mirrored into the ring file of a session.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "pharos/lens/span.h"

namespace pharos::lens::internal {

/// Text of an interned name.
std::string name_text(NameId id);

/// From now on (until called with null) names are also appended to `area`, `capacity_bytes` long: u16 length and text
/// each, in the order of their numbers. `used_bytes` is published after the text. Names known already come first.
void mirror_names(std::byte* area, std::size_t capacity_bytes, std::atomic<std::uint64_t>* used_bytes);

/// Held around fork, so that the child finds the table whole.
void lock_names();
void unlock_names();

}  // namespace pharos::lens::internal
