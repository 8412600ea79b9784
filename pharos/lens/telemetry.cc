#include "pharos/lens/telemetry.h"

#include <signal.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <set>
#include <thread>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/lens/record/recorder.h"

namespace pharos::lens {
namespace {

using namespace std::chrono_literals;

/// How often rings are looked at. Records are only lost when a thread writes a whole ring in that time.
constexpr auto kPollInterval = 20ms;
constexpr std::size_t kBatchSpans = 2048;

constinit std::atomic<Telemetry*> active{nullptr};

std::filesystem::path ring_path_of(const TelemetryOptions& options) {
  if (options.run_folder.empty() || !options.ring_file) return {};
  return options.run_folder / "trace" / ("rank_" + std::to_string(options.rank) + ".ring");
}

std::filesystem::path lines_path_of(const TelemetryOptions& options) {
  const std::string name = options.rank == 0 ? "spans.jsonl" : "spans_rank_" + std::to_string(options.rank) + ".jsonl";
  return options.run_folder / "trace" / name;
}

std::vector<std::shared_ptr<Exporter>> make_exporters(const TelemetryOptions& options) {
  std::vector<std::shared_ptr<Exporter>> exporters = options.exporters;
  if (options.console_exporter) exporters.push_back(make_console_exporter());
  if (options.file_exporter) {
    if (options.run_folder.empty()) throw base::InternalError("the file exporter needs a run folder");
    base::make_directories(options.run_folder / "trace");
    exporters.push_back(make_file_exporter(lines_path_of(options)));
  }
  return exporters;
}

Resource make_resource(const TelemetryOptions& options, const internal::FileHeader& header) {
  Resource resource;
  resource.attributes.emplace_back("service.name", options.service_name);
  resource.attributes.emplace_back("dl.rank", std::int64_t{options.rank});
  resource.attributes.emplace_back("dl.world_size", std::int64_t{options.world_size});
  resource.attributes.emplace_back("host.name", std::string(header.host_name));
  resource.attributes.emplace_back("process.pid", std::int64_t{header.pid});
  for (const auto& [key, value] : options.resource_attributes) resource.attributes.emplace_back(key, value);
  resource.wall_anchor_ns = header.wall_anchor_ns;
  resource.monotonic_anchor_ns = header.monotonic_anchor_ns;
  return resource;
}

void enable(GroupMask groups) {
  enabled_groups.store((groups & kAllGroups) | (GroupMask{1} << kActiveBit), std::memory_order_relaxed);
}

/// Runs `body` in a thread that takes no signals: they belong to the training thread.
template <typename Body>
std::thread start_quiet_thread(Body&& body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::forward<Body>(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

void shut_down_at_exit() {
  if (Telemetry* telemetry = Telemetry::get()) telemetry->shutdown(2000ms);
}

}  // namespace

struct Telemetry::State {
  TelemetryOptions options;
  std::vector<std::shared_ptr<Exporter>> exporters;
  Resource resource;
  internal::Session* session = nullptr;
  pid_t pid = 0;
  std::filesystem::path ring_path;
  std::thread thread;
  std::atomic<bool> is_shut_down{false};

  mutable std::mutex mutex;  ///< guards what follows
  std::condition_variable wake;
  std::condition_variable done;
  std::uint64_t flushes_requested = 0;
  std::uint64_t flushes_done = 0;
  bool is_stopping = false;
  bool is_stopped = false;
  TelemetryCounts totals;  ///< exported, failed_exports, overwritten, truncated

  std::vector<SpanData> pending;         ///< the exporter thread's
  std::set<const Exporter*> complained;  ///< exporters whose failure was said

  void run();
  void export_pending();
};

void Telemetry::State::export_pending() {
  if (pending.empty()) return;
  std::uint64_t failed = 0;
  bool is_delivered = true;
  for (const auto& exporter : exporters) {
    try {
      exporter->export_spans(pending, resource);
    } catch (const std::exception& error) {
      failed += pending.size();
      is_delivered = false;
      if (complained.insert(exporter.get()).second) {
        std::fprintf(stderr, "telemetry: exporter %s failed: %s; the run goes on, lost spans are counted\n",
                     exporter->name().c_str(), error.what());
      }
    }
  }
  const std::lock_guard lock(mutex);
  totals.failed_exports += failed;
  if (is_delivered && !exporters.empty()) totals.exported += pending.size();
  pending.clear();
}

void Telemetry::State::run() {
  // Without exporters the ring is the record: nobody has to empty it, and overwriting loses nothing that was promised.
  const bool has_exporters = !exporters.empty();
  const auto poll_interval = has_exporters ? std::chrono::milliseconds(kPollInterval) : std::chrono::hours(1);
  auto last_export = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex);
  while (true) {
    const bool was_stopping = is_stopping;
    const std::uint64_t requested = flushes_requested;
    lock.unlock();
    // First the open ones: a thread that is just ending a span holds it until its record is in the ring.
    std::vector<SpanData> truncated;
    if (was_stopping) internal::close_open_spans(*session, truncated);
    if (has_exporters) internal::drain(*session, pending);
    std::move(truncated.begin(), truncated.end(), std::back_inserter(pending));
    const auto now = std::chrono::steady_clock::now();
    const bool is_due = now - last_export >= options.export_interval || pending.size() >= kBatchSpans;
    if (is_due || was_stopping || requested != flushes_done) {
      export_pending();
      last_export = now;
    }
    lock.lock();
    totals.overwritten = session->overwritten;
    totals.truncated += truncated.size();
    flushes_done = requested;
    is_stopped = was_stopping;
    done.notify_all();
    if (was_stopping) return;
    wake.wait_for(lock, poll_interval, [this] { return is_stopping || flushes_requested != flushes_done; });
  }
}

Telemetry::Telemetry(std::unique_ptr<State> state) : state_(std::move(state)) {}
Telemetry::~Telemetry() = default;

Telemetry& Telemetry::init(TelemetryOptions options) {
  if (get() != nullptr) throw base::InternalError("telemetry has already been initialised");
  auto state = std::make_unique<State>();
  state->exporters = make_exporters(options);
  state->ring_path = ring_path_of(options);
  state->pid = getpid();
  state->session = internal::open_session({.ring_path = state->ring_path,
                                           .ring_records = options.ring_records,
                                           .rank = options.rank,
                                           .world_size = options.world_size,
                                           .service_name = options.service_name,
                                           .limits = options.limits,
                                           .sampler = options.sampler});
  state->resource = make_resource(options, *state->session->header);
  state->options = std::move(options);
  State* running = state.get();
  // Kept to the end of the process: an exporter thread that hangs may outlive shutdown().
  static auto* const handles = new std::vector<std::unique_ptr<Telemetry>>;
  handles->push_back(std::unique_ptr<Telemetry>(new Telemetry(std::move(state))));
  Telemetry* telemetry = handles->back().get();
  running->thread = start_quiet_thread([running] { running->run(); });
  static const int at_exit = std::atexit(&shut_down_at_exit);
  static_cast<void>(at_exit);
  active.store(telemetry);
  enable(running->options.groups);
  return *telemetry;
}

Telemetry* Telemetry::get() {
  Telemetry* telemetry = active.load();
  return telemetry != nullptr && telemetry->state_->pid == getpid() ? telemetry : nullptr;
}

void Telemetry::set_groups(GroupMask groups) {
  if (get() == this) enable(groups);
}

bool Telemetry::force_flush(std::chrono::milliseconds timeout) {
  if (get() != this) return true;
  std::unique_lock lock(state_->mutex);
  const std::uint64_t wanted = ++state_->flushes_requested;
  state_->wake.notify_all();
  return state_->done.wait_for(lock, timeout, [&] { return state_->flushes_done >= wanted; });
}

void Telemetry::shutdown(std::chrono::milliseconds timeout) {
  if (state_->pid != getpid() || state_->is_shut_down.exchange(true)) return;
  internal::deactivate_session(*state_->session);
  Telemetry* expected = this;
  active.compare_exchange_strong(expected, nullptr);
  bool is_stopped = false;
  {
    std::unique_lock lock(state_->mutex);
    state_->is_stopping = true;
    state_->wake.notify_all();
    is_stopped = state_->done.wait_for(lock, timeout, [this] { return state_->is_stopped; });
  }
  if (is_stopped) {
    state_->thread.join();
  } else {
    state_->thread.detach();
    std::fprintf(stderr, "telemetry: the exporters did not finish within %lld ms and are left behind\n",
                 static_cast<long long>(timeout.count()));
  }
  state_->session->header->is_shut_down.store(1, std::memory_order_release);
  const TelemetryCounts lost = counts();
  if (lost.overwritten + lost.refused + lost.failed_exports + lost.dropped_attributes == 0) return;
  std::fprintf(
      stderr,
      "telemetry: of %llu spans %llu were overwritten, %llu refused, %llu not exported; %llu attributes had no room\n",
      static_cast<unsigned long long>(lost.recorded), static_cast<unsigned long long>(lost.overwritten),
      static_cast<unsigned long long>(lost.refused), static_cast<unsigned long long>(lost.failed_exports),
      static_cast<unsigned long long>(lost.dropped_attributes));
}

TelemetryCounts Telemetry::counts() const {
  const std::lock_guard lock(state_->mutex);
  TelemetryCounts counts = state_->totals;
  counts.recorded = internal::count_records(*state_->session);
  counts.refused = state_->session->refused.load();
  counts.dropped_attributes = state_->session->dropped_attributes.load();
  return counts;
}

const std::filesystem::path& Telemetry::ring_path() const { return state_->ring_path; }

}  // namespace pharos::lens
