#include "pharos/comm/flight/writer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"

namespace pharos::comm {
namespace {

using flight_format::Entry;
using flight_format::EntryData;
using flight_format::kNumEntries;

std::atomic<FlightWriter*> current_writer = nullptr;

std::mutex progress_mutex;
Progress& stored_progress() {
  static Progress progress{.progress_ns = base::monotonic_ns()};
  return progress;
}

template <std::size_t kSize>
void copy_text(char (&target)[kSize], std::string_view text) {
  const auto size = std::min(text.size(), kSize - 1);
  std::memcpy(target, text.data(), size);
  std::memset(target + size, 0, kSize - size);
}

[[noreturn]] void fail(const std::filesystem::path& path, int error) {
  throw base::UserError(
      {.what = "The flight record " + path.string() + " cannot be written: " + std::strerror(error) + ".",
       .fix = "Free disk space or give another run folder."});
}

}  // namespace

FlightGroup::FlightGroup(std::string name, std::vector<std::int64_t> ranks)
    : name_(std::move(name)), ranks_(std::move(ranks)), channels_(new Channel[1 + 2 * ranks_.size()]) {}

FlightTicket& FlightTicket::operator=(FlightTicket&& other) noexcept {
  writer_ = std::exchange(other.writer_, nullptr);
  group_ = other.group_;
  slot_ = other.slot_;
  channel_ = other.channel_;
  data_ = other.data_;
  return *this;
}

void FlightTicket::mark_start() {
  if (writer_ == nullptr) return;
  data_.start_ns = base::monotonic_ns();
  writer_->entry(slot_).write(data_);
}

void FlightTicket::mark_wait() {
  if (writer_ == nullptr) return;
  data_.wait_ns = base::monotonic_ns();
  writer_->entry(slot_).write(data_);
}

void FlightTicket::mark_end() {
  if (writer_ == nullptr) return;
  data_.end_ns = base::monotonic_ns();
  writer_->entry(slot_).write(data_);
  writer_->release(*this);
  writer_ = nullptr;
}

FlightWriter::FlightWriter(const std::filesystem::path& path, std::int64_t rank, std::int64_t world_size)
    : path_(path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) fail(path, errno);
  // Blocks are reserved now: a full disk is an error here instead of a SIGBUS in the middle of a step.
  const int error = ::posix_fallocate(file, 0, flight_format::kFileBytes);
  void* data =
      error != 0 ? MAP_FAILED : ::mmap(nullptr, flight_format::kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int map_error = error != 0 ? error : errno;
  ::close(file);
  if (data == MAP_FAILED) fail(path, map_error);
  data_ = static_cast<std::byte*>(data);
  auto& head = header();
  head.version = flight_format::kVersion;
  head.num_entries = kNumEntries;
  head.entry_bytes = sizeof(Entry);
  head.group_area_bytes = flight_format::kGroupAreaBytes;
  head.rank = rank;
  head.world_size = world_size;
  head.pid = ::getpid();
  ::gethostname(head.host, sizeof head.host - 1);
  const auto progress = last_progress();
  report(progress.phase, progress.step, progress.progress_ns);
  std::atomic_ref(head.magic).store(flight_format::kMagic, std::memory_order_release);
}

FlightWriter::~FlightWriter() { ::munmap(data_, flight_format::kFileBytes); }

std::uint32_t FlightWriter::register_group(FlightGroup& group) {
  if (group.registered_in_.load(std::memory_order_acquire) == this) return group.offset_;
  const std::lock_guard lock(group_mutex_);
  if (group.registered_in_.load(std::memory_order_acquire) == this) return group.offset_;
  const auto used = header().group_bytes;
  const auto name_bytes = (group.name_.size() + 3) / 4 * 4;
  const auto size = sizeof(flight_format::GroupHead) + name_bytes + 4 * group.ranks_.size();
  if (used + size <= flight_format::kGroupAreaBytes) {
    std::byte* place = data_ + flight_format::kGroupAreaOffset + used;
    const flight_format::GroupHead head{static_cast<std::uint32_t>(group.name_.size()),
                                        static_cast<std::uint32_t>(group.ranks_.size())};
    std::memcpy(place, &head, sizeof head);
    std::memcpy(place + sizeof head, group.name_.data(), group.name_.size());
    place += sizeof head + name_bytes;
    for (const auto rank : group.ranks_) {
      const auto narrow = static_cast<std::uint32_t>(rank);
      std::memcpy(place, &narrow, sizeof narrow);
      place += sizeof narrow;
    }
    group.offset_ = static_cast<std::uint32_t>(used);
    std::atomic_ref(header().group_bytes).store(used + size, std::memory_order_release);
  }
  group.registered_in_.store(this, std::memory_order_release);
  return group.offset_;
}

std::optional<std::uint32_t> FlightWriter::claim_slot() {
  for (std::uint32_t attempt = 0; attempt < kNumEntries; ++attempt) {
    const auto slot = cursor_.fetch_add(1, std::memory_order_relaxed) % kNumEntries;
    auto expected = Slot::kFree;
    if (slots_[slot].compare_exchange_strong(expected, Slot::kPending)) return slot;
  }
  return std::nullopt;  // more calls under way than there are slots: this one goes without
}

FlightTicket FlightWriter::begin(FlightGroup& group, const FlightCall& call) {
  FlightTicket ticket;
  const auto slot = claim_slot();
  if (!slot) return ticket;
  ticket.writer_ = this;
  ticket.group_ = &group;
  ticket.slot_ = *slot;
  ticket.channel_ = call.channel;
  ticket.data_ = {.order = order_.fetch_add(1, std::memory_order_relaxed) + 1,
                  .number = call.number,
                  .bytes = call.bytes,
                  .peer = call.peer,
                  .purpose_index = call.purpose_index,
                  .arrival_ns = base::monotonic_ns(),
                  .start_ns = 0,
                  .end_ns = 0,
                  .wait_ns = 0,
                  .group = register_group(group),
                  .operation = static_cast<std::uint32_t>(call.operation),
                  .purpose = {}};
  copy_text(ticket.data_.purpose, call.purpose);
  entry(*slot).write(ticket.data_);
  const auto previous = group.channels_[call.channel].newest_slot.exchange(*slot);
  auto expected = Slot::kNewest;
  if (previous < kNumEntries) slots_[previous].compare_exchange_strong(expected, Slot::kFree);
  return ticket;
}

void FlightWriter::release(FlightTicket& ticket) {
  slots_[ticket.slot_].store(Slot::kNewest);
  // A later call of the channel may have looked at this slot just before: then freeing it is left to us.
  auto expected = Slot::kNewest;
  if (ticket.group_->channels_[ticket.channel_].newest_slot.load() != ticket.slot_) {
    slots_[ticket.slot_].compare_exchange_strong(expected, Slot::kFree);
  }
}

void FlightWriter::report(std::string_view phase, std::int64_t step, std::int64_t now_ns) {
  flight_format::Progress progress{};
  copy_text(progress.phase, phase);
  progress.step = step;
  progress.progress_ns = now_ns;
  const std::lock_guard lock(progress_mutex_);
  header().progress.write(progress);
}

void FlightWriter::report_activity(std::string_view what, std::int64_t microbatch, std::int64_t stage) {
  flight_format::Activity activity{{}, microbatch, stage};
  copy_text(activity.what, what);
  header().activity.write(activity);
}

void FlightWriter::show_life(std::int64_t now_ns) {
  std::atomic_ref(header().alive_ns).store(now_ns, std::memory_order_relaxed);
}

RankState FlightWriter::read() const { return parse_flight_record(data_, flight_format::kFileBytes, path_.string()); }

FlightWriter* FlightWriter::current() { return current_writer.load(std::memory_order_acquire); }

void start_flight_record(const std::filesystem::path& path, std::int64_t rank, std::int64_t world_size) {
  PHAROS_CHECK(FlightWriter::current() == nullptr, "a flight record was started twice");
  // Never freed: calls may end while the process leaves.
  current_writer.store(new FlightWriter(path, rank, world_size), std::memory_order_release);
}

void report_progress(std::string_view phase, std::int64_t step) {
  const auto now = base::monotonic_ns();
  {
    const std::lock_guard lock(progress_mutex);
    stored_progress() = {std::string(phase), step, now};
  }
  if (auto* writer = FlightWriter::current()) writer->report(phase, step, now);
}

void report_activity(std::string_view what, std::int64_t microbatch, std::int64_t stage) {
  if (auto* writer = FlightWriter::current()) writer->report_activity(what, microbatch, stage);
}

Progress last_progress() {
  const std::lock_guard lock(progress_mutex);
  return stored_progress();
}

}  // namespace pharos::comm
