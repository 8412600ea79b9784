// Reading a ring file: of a running process, of one that left, of one that was killed. The format is in ring_format.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "pharos/lens/exporter.h"

namespace pharos::lens {

struct RingContents {
  Resource resource;  ///< service.name, dl.rank, dl.world_size, host.name, process.pid; clock anchors
  bool is_shut_down = false;
  std::vector<SpanData> spans;         ///< ended, in order of their end
  std::vector<SpanData> open_spans;    ///< started and not ended, in order of their start; end_ns is 0
  std::vector<CounterEvent> counters;  ///< in order of their end
  std::uint64_t num_overwritten = 0;   ///< ended spans that the ring no longer holds
};

/// What `path` holds. A file that is no ring, of another version or too short is a UserError; a damaged record is left
/// out. Spans that were open when the process died carry the attribute `nemo.span.truncated` like those that were open
/// at shutdown.
RingContents read_ring(const std::filesystem::path& path);

}  // namespace pharos::lens
