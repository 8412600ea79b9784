#include "pharos/lens/record/ring_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/lens/record/recorder.h"

namespace pharos::lens::internal {

std::filesystem::path previous_ring_path(std::filesystem::path path) {
  return path.replace_extension(".previous.ring");
}

namespace {

constexpr std::size_t kHeaderBytes = kPageBytes + kNamesBytes;

void keep_previous(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return;
  std::filesystem::rename(path, previous_ring_path(path), error);
}

int open_file(const std::filesystem::path& path) {
  base::make_directories(path.parent_path());
  keep_previous(path);
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) {
    throw base::UserError({.what = "The trace ring " + path.string() + " cannot be made: " + std::strerror(errno) + ".",
                           .fix = "Make its folder writable, or choose another run folder."});
  }
  if (descriptor > STDERR_FILENO) return descriptor;
  // Standard output was closed: what the program prints must not land in the ring.
  const int moved = fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  if (moved < 0) return descriptor;
  close(descriptor);
  return moved;
}

/// Reserves and maps a part of the file; null when the file system has no room or no shared maps.
std::byte* map_file_part(int descriptor, std::size_t offset, std::size_t num_bytes) {
  const int result = posix_fallocate(descriptor, static_cast<off_t>(offset), static_cast<off_t>(num_bytes));
  if (result != 0) {
    errno = result;
    return nullptr;
  }
  void* memory = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, static_cast<off_t>(offset));
  if (memory == MAP_FAILED) return nullptr;
  // The first write to each page would cost a page fault inside a span site.
  madvise(memory, num_bytes, MADV_POPULATE_WRITE);
  return static_cast<std::byte*>(memory);
}

std::byte* map_memory(std::size_t num_bytes) {
  void* memory = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

/// After this the session has no file for new threads.
void give_up_file(Session& session, const char* what) {
  std::fprintf(stderr, "telemetry: no room for %s in %s (%s); its spans do not survive a crash, the run goes on\n",
               what, session.options.ring_path.c_str(), std::strerror(errno));
  close(session.descriptor);
  session.descriptor = -1;
}

void fill_header(Session& session) {
  FileHeader& header = *session.header;
  const SessionOptions& options = session.options;
  header.version = kRingVersion;
  header.record_bytes = sizeof(RingRecord);
  header.ring_records = options.ring_records;
  header.num_open_slots = kNumOpenSlots;
  header.names_offset = kPageBytes;
  header.regions_offset = kHeaderBytes;
  header.region_bytes = region_bytes(options.ring_records);
  header.monotonic_anchor_ns = base::monotonic_ns();
  header.wall_anchor_ns = base::wall_ns();
  header.pid = getpid();
  header.rank = options.rank;
  header.world_size = options.world_size;
  std::snprintf(header.service_name, sizeof header.service_name, "%s", options.service_name.c_str());
  gethostname(header.host_name, sizeof header.host_name - 1);
  std::memcpy(header.magic, kRingMagic, sizeof header.magic);
}

}  // namespace

void map_header(Session& session) {
  std::byte* memory = nullptr;
  if (!session.options.ring_path.empty()) {
    session.descriptor = open_file(session.options.ring_path);
    memory = map_file_part(session.descriptor, 0, kHeaderBytes);
    if (memory == nullptr) give_up_file(session, "the ring");
  }
  if (memory == nullptr) memory = map_memory(kHeaderBytes);
  if (memory == nullptr) throw base::InternalError("no memory for telemetry");
  session.header = reinterpret_cast<FileHeader*>(memory);
  fill_header(session);
}

std::byte* map_region(Session& session) {
  const std::size_t num_bytes = region_bytes(session.options.ring_records);
  if (session.descriptor >= 0) {
    const std::uint32_t index = session.header->num_regions.load(std::memory_order_relaxed);
    std::byte* memory = map_file_part(session.descriptor, kHeaderBytes + index * num_bytes, num_bytes);
    if (memory != nullptr) {
      session.header->num_regions.store(index + 1, std::memory_order_release);
      return memory;
    }
    give_up_file(session, "one more thread");
  }
  return map_memory(num_bytes);
}

}  // namespace pharos::lens::internal
