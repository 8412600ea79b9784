// The reading side of the flight record.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/comm/flight/writer.h"

namespace pharos::comm {
namespace {

using flight_format::Entry;
using flight_format::EntryData;
using flight_format::Header;

constexpr const char* kOperationNames[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                           "send",       "receive",    "barrier",        "all_to_all"};

[[noreturn]] void fail(const std::string& where, const std::string& why) {
  throw base::UserError({.what = where + " is no flight record: " + why + ".",
                         .fix = "Give a file rank_NNNNN.flight that this version of the program wrote."});
}

template <std::size_t kSize>
std::string text_of(const char (&text)[kSize]) {
  return std::string(text, strnlen(text, kSize));
}

struct NamedGroup {
  std::string name;
  std::vector<std::int64_t> ranks;
};

NamedGroup group_at(const std::byte* area, std::uint64_t used, std::uint32_t offset, const std::string& where) {
  if (offset == flight_format::kNoGroup) return {"(unnamed)", {}};
  flight_format::GroupHead head;
  if (offset + sizeof head > used) fail(where, "a group lies outside its table");
  std::memcpy(&head, area + offset, sizeof head);
  const std::uint64_t name_bytes = (std::uint64_t{head.name_bytes} + 3) / 4 * 4;
  if (offset + sizeof head + name_bytes + 4 * std::uint64_t{head.num_ranks} > used) fail(where, "a group is cut off");
  const std::byte* place = area + offset + sizeof head;
  NamedGroup group{std::string(reinterpret_cast<const char*>(place), head.name_bytes), {}};
  place += name_bytes;
  for (std::uint32_t i = 0; i < head.num_ranks; ++i, place += 4) {
    std::uint32_t rank;
    std::memcpy(&rank, place, sizeof rank);
    group.ranks.push_back(rank);
  }
  return group;
}

const Header& checked_header(const std::byte* data, std::size_t size_bytes, const std::string& where) {
  if (size_bytes < sizeof(Header)) fail(where, "it is too short");
  const auto& header = *reinterpret_cast<const Header*>(data);
  if (header.magic != flight_format::kMagic) fail(where, "it begins differently");
  if (header.version != flight_format::kVersion || header.num_entries != flight_format::kNumEntries ||
      header.entry_bytes != sizeof(Entry) || header.group_area_bytes != flight_format::kGroupAreaBytes) {
    fail(where, "another version wrote it");
  }
  if (size_bytes < flight_format::kFileBytes) fail(where, "it is cut off");
  return header;
}

}  // namespace

const char* operation_name(Operation operation) { return kOperationNames[static_cast<std::size_t>(operation)]; }

std::string purpose_text(std::string what, std::int64_t index) {
  if (index >= 0) what.append(" ").append(std::to_string(index));
  return what;
}

std::string flight_file_name(std::int64_t rank) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "rank_%05lld.flight", static_cast<long long>(rank));
  return text.data();
}

RankState parse_flight_record(const std::byte* data, std::size_t size_bytes, const std::string& where) {
  const auto& header = checked_header(data, size_bytes, where);
  RankState state;
  state.rank = header.rank;
  state.world_size = header.world_size;
  state.pid = header.pid;
  state.host = text_of(header.host);
  state.alive_ns = std::atomic_ref(const_cast<Header&>(header).alive_ns).load(std::memory_order_relaxed);
  flight_format::Progress progress{};
  if (header.progress.read(progress)) {
    state.phase = text_of(progress.phase);
    state.step = progress.step;
    state.progress_ns = progress.progress_ns;
  }
  flight_format::Activity activity{};
  if (header.activity.read(activity) && activity.what[0] != 0) {
    state.activity = text_of(activity.what) + " of microbatch " + std::to_string(activity.microbatch) + " on stage " +
                     std::to_string(activity.stage);
  }
  std::vector<EntryData> found;
  const auto* entries = reinterpret_cast<const Entry*>(data + flight_format::kEntriesOffset);
  for (std::uint32_t i = 0; i < header.num_entries; ++i) {
    EntryData entry;
    if (entries[i].read(entry) && entry.order != 0) found.push_back(entry);
  }
  std::ranges::sort(found, {}, &EntryData::order);
  // After the entries, so that every group they name is in the table.
  const auto used = std::atomic_ref(const_cast<Header&>(header).group_bytes).load(std::memory_order_acquire);
  if (used > flight_format::kGroupAreaBytes) fail(where, "its table of groups is damaged");
  for (const auto& entry : found) {
    if (entry.operation >= std::size(kOperationNames)) fail(where, "a call has an unknown operation");
    auto group = group_at(data + flight_format::kGroupAreaOffset, used, entry.group, where);
    state.flights.push_back({.group = std::move(group.name),
                             .ranks = std::move(group.ranks),
                             .number = entry.number,
                             .operation = static_cast<Operation>(entry.operation),
                             .purpose = purpose_text(text_of(entry.purpose), entry.purpose_index),
                             .bytes = entry.bytes,
                             .peer = entry.peer,
                             .arrival_ns = entry.arrival_ns,
                             .start_ns = entry.start_ns,
                             .end_ns = entry.end_ns,
                             .wait_ns = entry.wait_ns});
  }
  return state;
}

RankState read_flight_record(const std::filesystem::path& path) {
  const base::MappedFile file(path);
  return parse_flight_record(file.data(), file.size_bytes(), path.string());
}

}  // namespace pharos::comm
