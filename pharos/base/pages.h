// Memory of mapped files: what has been read is given back at once, so that a process that reads a large file once does
// not hold it.
#pragma once

#include <cstddef>

namespace pharos::base {

/// How much of a map is looked at before it is released.
inline constexpr std::size_t kMappedBlockBytes = std::size_t{4} << 20;

/// Has the pages of a read-only map read in one go, instead of one fault after the other.
void load_pages(const void* begin, std::size_t num_bytes);
/// Starts reading them, without waiting.
void prefetch_pages(const void* begin, std::size_t num_bytes);
/// Takes the pages out of this process. They stay in the kernel's cache, and come back when they are looked at.
void release_pages(const void* begin, std::size_t num_bytes);

}  // namespace pharos::base
