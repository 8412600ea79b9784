#include "pharos/base/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace pharos::base {
namespace {

/// The whole pages that hold the bytes. Advice is only advice: what a kernel does not know is passed over.
void advise(const void* begin, std::size_t num_bytes, int advice) {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(begin) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(begin) + num_bytes;
  if (num_bytes > 0) ::madvise(reinterpret_cast<void*>(first), end - first, advice);
}

}  // namespace

void load_pages(const void* begin, std::size_t num_bytes) {
#ifdef MADV_POPULATE_READ
  advise(begin, num_bytes, MADV_POPULATE_READ);
#else
  advise(begin, num_bytes, MADV_WILLNEED);
#endif
}

void prefetch_pages(const void* begin, std::size_t num_bytes) { advise(begin, num_bytes, MADV_WILLNEED); }

void release_pages(const void* begin, std::size_t num_bytes) { advise(begin, num_bytes, MADV_DONTNEED); }

}  // namespace pharos::base
