#include "pharos/lens/record/ring.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/lens/record/joiner.h"
#include "pharos/lens/record/payload.h"
#include "pharos/lens/record/recorder.h"

namespace pharos::lens {
namespace {

using internal::FileHeader;
using internal::OpenSlot;
using internal::RecordBody;
using internal::RegionHeader;
using internal::RingRecord;

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& why) {
  throw base::UserError({.what = path.string() + " is not a trace ring that this program can read: " + why + ".",
                         .fix = "Give a file trace/rank_N.ring of a run folder."});
}

[[noreturn]] void fail_cut(const base::MappedFile& file) {
  fail(file.path(), "it was cut off after " + std::to_string(file.size_bytes()) + " bytes");
}

/// Checks everything that offsets are computed from.
const FileHeader& check_header(const base::MappedFile& file) {
  if (file.size_bytes() < internal::kPageBytes) fail(file.path(), "it is shorter than a header");
  const auto& header = *reinterpret_cast<const FileHeader*>(file.data());
  if (std::memcmp(header.magic, internal::kRingMagic, sizeof header.magic) != 0) fail(file.path(), "wrong magic");
  if (header.version != internal::kRingVersion) {
    fail(file.path(), "version " + std::to_string(header.version) + ", this program reads version " +
                          std::to_string(internal::kRingVersion));
  }
  const std::uint32_t records = header.ring_records;
  const bool is_sound = header.record_bytes == sizeof(RingRecord) && header.num_open_slots == internal::kNumOpenSlots &&
                        records != 0 && (records & (records - 1)) == 0 && records <= (1u << 26) &&
                        header.region_bytes == internal::region_bytes(records) &&
                        header.names_offset == internal::kPageBytes &&
                        header.regions_offset == internal::kPageBytes + internal::kNamesBytes;
  if (!is_sound) fail(file.path(), "its header is damaged");
  if (header.regions_offset > file.size_bytes()) fail_cut(file);
  return header;
}

std::vector<std::string> read_names(const base::MappedFile& file, const FileHeader& header) {
  const std::size_t end =
      std::min<std::size_t>(header.names_used.load(std::memory_order_acquire), internal::kNamesBytes);
  const std::byte* area = file.data() + header.names_offset;
  std::vector<std::string> names;
  std::size_t offset = 0;
  while (offset + sizeof(std::uint16_t) <= end) {
    std::uint16_t length = 0;
    std::memcpy(&length, area + offset, sizeof length);
    offset += sizeof length;
    if (offset + length > end) break;
    names.emplace_back(reinterpret_cast<const char*>(area + offset), length);
    offset += length;
  }
  return names;
}

Resource read_resource(const FileHeader& header) {
  const auto text = [](const char* bytes, std::size_t capacity) {
    return std::string(bytes, strnlen(bytes, capacity));
  };
  Resource resource;
  resource.attributes.emplace_back("service.name", text(header.service_name, sizeof header.service_name));
  resource.attributes.emplace_back("dl.rank", std::int64_t{header.rank});
  resource.attributes.emplace_back("dl.world_size", std::int64_t{header.world_size});
  resource.attributes.emplace_back("host.name", text(header.host_name, sizeof header.host_name));
  resource.attributes.emplace_back("process.pid", std::int64_t{header.pid});
  resource.wall_anchor_ns = header.wall_anchor_ns;
  resource.monotonic_anchor_ns = header.monotonic_anchor_ns;
  return resource;
}

class RegionReader {
 public:
  RegionReader(const std::byte* region, const FileHeader& header, const std::vector<std::string>& names)
      : header_(*reinterpret_cast<const RegionHeader*>(region)),
        slots_(reinterpret_cast<const OpenSlot*>(region + sizeof(RegionHeader))),
        records_(reinterpret_cast<const RingRecord*>(slots_ + internal::kNumOpenSlots)),
        capacity_(header.ring_records),
        names_(names) {}

  void read_records(RingContents& contents) const {
    const std::uint64_t continuations = header_.num_continuations.load(std::memory_order_acquire);
    const std::uint64_t head = header_.num_records.load(std::memory_order_acquire);
    const std::uint64_t first = head > capacity_ ? head - capacity_ : 0;
    internal::RecordJoiner joiner;
    std::uint64_t num_counted = 0;
    RecordBody body;
    // One more than counted: the process may have died between a record's last word and the count.
    for (std::uint64_t index = first; index <= head; ++index) {
      if (!internal::read_record(records_[index & (capacity_ - 1)], index, body)) continue;
      if (body.span_id == 0) continue;
      std::optional<SpanData> span = joiner.add(body);
      if (!span) continue;
      if (body.group == internal::kCounterGroup) {
        SpanData event = with_name(std::move(*span), body);
        contents.counters.push_back(
            {std::move(event.name), event.start_ns, event.end_ns, event.thread_index, std::move(event.attributes)});
        continue;
      }
      num_counted += index < head;
      contents.spans.push_back(with_name(std::move(*span), body));
    }
    const std::uint64_t num_ended = head > continuations ? head - continuations : 0;
    if (first != 0 && num_ended > num_counted) contents.num_overwritten += num_ended - num_counted;
  }

  void read_open(RingContents& contents) const {
    for (std::uint32_t i = 0; i < internal::kNumOpenSlots; ++i) {
      const std::uint64_t state = slots_[i].state.load(std::memory_order_acquire) & 3;
      if (state == internal::kFree) continue;
      RecordBody body;
      std::memcpy(static_cast<void*>(&body), &slots_[i].body, sizeof body);
      if (body.span_id == 0) continue;
      SpanData span = with_name(internal::decode(body, {}), body);
      if (state == internal::kTruncated) {
        internal::mark_truncated(span, span.end_ns, "still open at telemetry shutdown");
        contents.spans.push_back(std::move(span));
      } else {
        span.end_ns = 0;
        internal::mark_truncated(span, span.start_ns, "still open when the ring was read");
        contents.open_spans.push_back(std::move(span));
      }
    }
  }

 private:
  SpanData with_name(SpanData span, const RecordBody& body) const {
    span.name = body.name < names_.size() ? names_[body.name] : "unknown name " + std::to_string(body.name);
    span.thread_index = header_.thread_index;
    return span;
  }

  const RegionHeader& header_;
  const OpenSlot* slots_;
  const RingRecord* records_;
  std::uint64_t capacity_;
  const std::vector<std::string>& names_;
};

/// A process may die between writing the record of an ended span and freeing its slot.
void drop_ended(RingContents& contents) {
  std::set<std::uint64_t> ended;
  for (const SpanData& span : contents.spans) ended.insert(span.context.span_id);
  std::erase_if(contents.open_spans, [&ended](const SpanData& span) { return ended.count(span.context.span_id) != 0; });
}

}  // namespace

RingContents read_ring(const std::filesystem::path& path) {
  const base::MappedFile file(path);
  const FileHeader& header = check_header(file);
  const std::vector<std::string> names = read_names(file, header);
  RingContents contents;
  contents.resource = read_resource(header);
  contents.is_shut_down = header.is_shut_down.load(std::memory_order_relaxed) != 0;
  const std::uint32_t num_regions = std::min(header.num_regions.load(std::memory_order_acquire), internal::kMaxThreads);
  for (std::uint32_t i = 0; i < num_regions; ++i) {
    const std::size_t offset = header.regions_offset + i * header.region_bytes;
    if (offset + header.region_bytes > file.size_bytes()) {
      // A thread that began to record after the file was mapped made it longer; the header is newer than the map.
      if (std::filesystem::file_size(path) >= offset + header.region_bytes) break;
      fail_cut(file);
    }
    const RegionReader region(file.data() + offset, header, names);
    region.read_open(contents);
    region.read_records(contents);
  }
  drop_ended(contents);
  std::stable_sort(contents.spans.begin(), contents.spans.end(),
                   [](const SpanData& left, const SpanData& right) { return left.end_ns < right.end_ns; });
  std::stable_sort(contents.counters.begin(), contents.counters.end(),
                   [](const CounterEvent& left, const CounterEvent& right) { return left.end_ns < right.end_ns; });
  std::stable_sort(contents.open_spans.begin(), contents.open_spans.end(),
                   [](const SpanData& left, const SpanData& right) { return left.start_ns < right.start_ns; });
  return contents;
}

}  // namespace pharos::lens
