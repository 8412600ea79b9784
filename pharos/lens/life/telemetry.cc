#include "pharos/lens/life/telemetry.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <system_error>
#include <thread>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/lens/life/quiet_thread.h"
#include "pharos/lens/life/signal_hook.h"
#include "pharos/lens/logs/log_queue.h"
#include "pharos/lens/logs/logger.h"
#include "pharos/lens/metrics/meter.h"
#include "pharos/lens/metrics/training_metrics.h"
#include "pharos/lens/record/recorder.h"
#include "pharos/lens/record/ring_file.h"

namespace pharos::lens {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// How often rings are looked at. Records are only lost when a thread writes a whole ring in that time.
constexpr auto kPollInterval = 20ms;
/// How long shutdown() waits for an exporter thread that is past its deadline, before it leaves it behind.
constexpr auto kGrace = 500ms;

constinit std::atomic<Telemetry*> active{nullptr};
constinit std::atomic<Telemetry*> newest{nullptr};

std::filesystem::path ring_path_of(const TelemetryOptions& options) {
  if (options.run_folder.empty() || !options.ring_file) return {};
  return options.run_folder / "trace" / ("rank_" + std::to_string(options.rank) + ".ring");
}

std::filesystem::path lines_path_of(const TelemetryOptions& options) {
  const std::string name = options.rank == 0 ? "spans.jsonl" : "spans_rank_" + std::to_string(options.rank) + ".jsonl";
  return options.run_folder / "trace" / name;
}

void add_local_exporters(TelemetryOptions& options) {
  auto& exporters = options.pipeline.exporters;
  if (options.console_exporter) exporters.push_back(make_console_exporter());
  if (!options.file_exporter) return;
  if (options.run_folder.empty()) throw base::InternalError("the file exporter needs a run folder");
  base::make_directories(options.run_folder / "trace");
  exporters.push_back(make_file_exporter(lines_path_of(options)));
}

Resource make_resource(const TelemetryOptions& options, const internal::FileHeader& header) {
  Resource resource;
  const auto add = [&resource](std::string key, StoredValue value) {
    for (auto& [known, stored] : resource.attributes) {
      if (known == key) return void(stored = std::move(value));
    }
    resource.attributes.emplace_back(std::move(key), std::move(value));
  };
  add("service.name", options.service_name);
  add("dl.rank", std::int64_t{options.rank});
  add("dl.world_size", std::int64_t{options.world_size});
  add("host.name", std::string(header.host_name));
  add("process.pid", std::int64_t{header.pid});
  for (const auto& [key, value] : options.resource_attributes) add(key, value);
  resource.wall_anchor_ns = header.wall_anchor_ns;
  resource.monotonic_anchor_ns = header.monotonic_anchor_ns;
  return resource;
}

void put_previous_ring_back(const std::filesystem::path& ring_path) {
  if (ring_path.empty()) return;
  std::error_code ignored;
  std::filesystem::remove(ring_path, ignored);
  std::filesystem::rename(internal::previous_ring_path(ring_path), ring_path, ignored);
}

void enable(GroupMask groups) {
  enabled_groups.store((groups & kAllGroups) | (GroupMask{1} << kActiveBit), std::memory_order_relaxed);
}

/// The newest one, active or not: a shutdown that another thread has begun is waited for.
void shut_down_at_exit() {
  if (Telemetry* telemetry = newest.load()) telemetry->shutdown(2000ms);
}

/// In the thread of the signal hook. Then the signal does what it would have done.
void end_by_signal(int signal) {
  if (Telemetry* telemetry = newest.load()) telemetry->shutdown();
  signal_hook::pass_on(signal);
}

std::uint64_t lost(const ItemCounts& counts) { return counts.dropped + counts.failed + counts.rejected; }

/// Items of which nobody knows what became.
std::uint64_t missing(std::uint64_t total, const ItemCounts& counts) {
  const std::uint64_t known = counts.exported + lost(counts);
  return std::max(total, known) - known;
}

void report_losses(const TelemetryCounts& counts) {
  const auto number = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
  if (counts.overwritten + counts.refused + counts.failed_exports + counts.dropped_attributes > 0) {
    std::fprintf(stderr,
                 "telemetry: of %llu spans %llu were overwritten, %llu refused, %llu not exported; %llu attributes had "
                 "no room\n",
                 number(counts.recorded + counts.truncated + counts.refused), number(counts.overwritten),
                 number(counts.refused), number(counts.failed_exports), number(counts.dropped_attributes));
  }
  const std::uint64_t num_points = lost(counts.signals[static_cast<std::size_t>(otlp::Signal::kMetrics)]);
  const std::uint64_t num_records = lost(counts.signals[static_cast<std::size_t>(otlp::Signal::kLogs)]);
  if (num_points + num_records > 0) {
    std::fprintf(stderr, "telemetry: %llu metric points and %llu log records were not exported\n", number(num_points),
                 number(num_records));
  }
  std::uint64_t num_unwritten = 0;
  for (const ItemCounts& signal : counts.signals) num_unwritten += signal.failed_locally;
  if (num_unwritten > 0) {
    std::fprintf(stderr, "telemetry: %llu items that went out over OTLP were not written by another exporter\n",
                 number(num_unwritten));
  }
}

}  // namespace

struct Telemetry::State {
  TelemetryOptions options;
  internal::Session* session = nullptr;
  std::unique_ptr<MeterProvider> metrics;
  std::unique_ptr<LogQueue> logs;
  std::unique_ptr<Pipeline> pipeline;
  pid_t pid = 0;
  std::filesystem::path ring_path;
  std::thread thread;
  std::recursive_mutex shutdown_mutex;  ///< recursive: a handler of the program may call exit() within shutdown()
  std::atomic<bool> is_shut_down{false};

  mutable std::mutex mutex;  ///< guards what follows
  std::condition_variable woken;
  std::condition_variable done;
  std::uint64_t flushes_requested = 0;
  std::uint64_t flushes_done = 0;
  bool is_stopping = false;
  bool is_stopped = false;
  bool is_abandoned = false;        ///< the exporter thread has failed, or hangs and was left behind
  Clock::time_point deadline = {};  ///< of stopping
  std::uint64_t num_truncated = 0;
  std::uint64_t num_overwritten = 0;

  void run();
  void serve();
  void fail(const char* reason);
  void take_spans(bool is_last);
  /// Waits until there is something to do; with the network, that wait was in Pipeline::turn.
  void rest(std::unique_lock<std::mutex>& lock, bool is_busy);
  ExportCounts count_items() const;
  PipelineCounts describe() const;
  void start();
};

void Telemetry::State::take_spans(bool is_last) {
  std::vector<SpanData> spans;
  std::vector<SpanData> truncated;
  // First the open ones: a thread that is just ending a span holds it until its record is in the ring.
  if (is_last) internal::close_open_spans(*session, truncated);
  if (pipeline->wants_spans()) internal::drain(*session, spans);
  const std::size_t num_closed = truncated.size();
  if (pipeline->wants_spans()) {
    std::move(truncated.begin(), truncated.end(), std::back_inserter(spans));
    pipeline->add_spans(std::move(spans));
  }
  const std::lock_guard lock(mutex);
  num_truncated += num_closed;
  num_overwritten = session->overwritten;
}

void Telemetry::State::rest(std::unique_lock<std::mutex>& lock, bool is_busy) {
  if (is_busy || pipeline->waits_for_network()) return;
  // Without exporters the ring is the record: nobody has to empty it, and overwriting loses nothing that was promised.
  const auto wait = pipeline->exports() ? std::chrono::milliseconds(kPollInterval) : std::chrono::hours(1);
  woken.wait_for(lock, wait, [this] { return is_stopping || flushes_requested != flushes_done; });
}

void Telemetry::State::run() {
  try {
    serve();
  } catch (const std::exception& error) {
    fail(error.what());
  } catch (...) {
    fail("an exception of unknown type");
  }
}

void Telemetry::State::serve() {
  std::uint64_t flush = 0;  // the newest request that is being worked on
  Pipeline::Position flush_position = {};
  bool is_closed = false;
  std::unique_lock lock(mutex);
  while (true) {
    const bool stops = is_stopping;
    const std::uint64_t requested = flushes_requested;
    const Clock::time_point give_up_at = deadline;
    lock.unlock();
    if (!is_closed) take_spans(stops);
    pipeline->take_logs();
    if (requested != flush || (stops && !is_closed)) {
      pipeline->request_collection(stops);
      flush_position = pipeline->position();
      flush = requested;
      is_closed = stops;
    }
    const bool is_flushing = stops || flush != flushes_done;
    pipeline->turn(is_flushing, kPollInterval);
    if (stops && Clock::now() >= give_up_at) pipeline->give_up();
    const bool is_settled = is_flushing && pipeline->is_settled(flush_position);
    lock.lock();
    if (is_settled) flushes_done = flush;
    is_stopped = is_closed && is_settled;
    done.notify_all();
    if (is_stopped) return pipeline->close();
    rest(lock, is_flushing && !is_settled);
  }
}

/// The last thing the exporter thread does when it cannot go on. What nobody will export any more is not recorded.
void Telemetry::State::fail(const char* reason) {
  std::fprintf(stderr, "telemetry: the exporter thread ends: %s; nothing is exported from here on, the run goes on\n",
               reason);
  if (!is_shut_down.load()) internal::deactivate_session(*session);
  const std::lock_guard lock(mutex);
  is_abandoned = true;
  is_stopped = true;
  done.notify_all();
}

/// With what an exporter thread that hangs or has failed leaves undone.
ExportCounts Telemetry::State::count_items() const {
  ExportCounts signals = pipeline->counts();
  const auto of = [&signals](otlp::Signal signal) -> ItemCounts& { return signals[static_cast<std::size_t>(signal)]; };
  const LogCounts log_counts = logs ? logs->counts() : LogCounts{};
  of(otlp::Signal::kLogs).dropped += log_counts.dropped;
  const std::lock_guard lock(mutex);
  if (!is_abandoned) return signals;
  const std::uint64_t num_ended = internal::count_records(*session) + num_truncated - num_overwritten;
  if (pipeline->wants_spans()) of(otlp::Signal::kTraces).failed += missing(num_ended, of(otlp::Signal::kTraces));
  of(otlp::Signal::kLogs).failed += missing(log_counts.emitted, of(otlp::Signal::kLogs));
  of(otlp::Signal::kMetrics).failed += of(otlp::Signal::kMetrics).queued;
  for (ItemCounts& counts : signals) counts.queued = 0;
  return signals;
}

/// For the metrics of telemetry itself.
PipelineCounts Telemetry::State::describe() const {
  const ExportCounts signals = count_items();
  const auto part = [&signals](otlp::Signal signal) {
    const ItemCounts& counts = signals[static_cast<std::size_t>(signal)];
    return SignalCounts{counts.exported, counts.dropped, counts.failed + counts.rejected};
  };
  PipelineCounts counts{part(otlp::Signal::kTraces), part(otlp::Signal::kMetrics), part(otlp::Signal::kLogs), 0};
  counts.spans.dropped += session->overwritten + session->refused.load();
  for (const ItemCounts& signal : signals) counts.queue_depth += signal.queued;
  return counts;
}

void Telemetry::State::start() {
  pipeline =
      std::make_unique<Pipeline>(options.pipeline, make_resource(options, *session->header), metrics.get(), logs.get());
  if (metrics) observe_telemetry(metrics->meter(), [this] { return describe(); });
  try {
    if (pipeline->exports() && options.handles_signals) signal_hook::install(&end_by_signal);
    thread = internal::start_quiet_thread([this] { run(); });
  } catch (const std::system_error& error) {
    signal_hook::restore();
    throw base::UserError({.what = std::string("Telemetry cannot start its threads: ") + error.what() + ".",
                           .fix = "Raise the limit of processes (ulimit -u) or of memory, or turn telemetry off."});
  }
}

Telemetry::Telemetry(std::unique_ptr<State> state) : state_(std::move(state)) {}
Telemetry::~Telemetry() = default;

Telemetry& Telemetry::init(TelemetryOptions options) {
  if (!kIsLensBuilt) {
    throw base::UserError({.what = "This build of Pharos has no telemetry.",
                           .why = "It was configured with PHAROS_LENS=OFF.",
                           .fix = "Leave telemetry off, or build without that option."});
  }
  if (get() != nullptr) throw base::InternalError("telemetry has already been initialised");
  auto state = std::make_unique<State>();
  add_local_exporters(options);
  state->ring_path = ring_path_of(options);
  state->pid = getpid();
  const bool exports = options.pipeline.otlp || !options.pipeline.exporters.empty();
  if (exports && options.collects_metrics) state->metrics = std::make_unique<MeterProvider>(options.metrics);
  if (exports && options.collects_logs) state->logs = std::make_unique<LogQueue>(options.log_options);
  state->session = internal::open_session({.ring_path = state->ring_path,
                                           .ring_records = options.ring_records,
                                           .rank = options.rank,
                                           .world_size = options.world_size,
                                           .service_name = options.service_name,
                                           .limits = options.limits,
                                           .sampler = options.sampler});
  state->options = std::move(options);
  try {
    state->start();
  } catch (const std::exception&) {
    internal::deactivate_session(*state->session);
    put_previous_ring_back(state->ring_path);
    throw;
  }
  // Kept to the end of the process: an exporter thread that hangs may outlive shutdown().
  static auto* const handles = new std::vector<std::unique_ptr<Telemetry>>;
  handles->push_back(std::unique_ptr<Telemetry>(new Telemetry(std::move(state))));
  Telemetry* telemetry = handles->back().get();
  static const int at_exit = std::atexit(&shut_down_at_exit);
  static_cast<void>(at_exit);
  newest.store(telemetry);
  active.store(telemetry);
  if (telemetry->logs() != nullptr) install_log_queue(telemetry->logs());
  enable(telemetry->state_->options.groups);
  return *telemetry;
}

Telemetry* Telemetry::get() {
  Telemetry* telemetry = active.load();
  return telemetry != nullptr && telemetry->state_->pid == getpid() ? telemetry : nullptr;
}

bool Telemetry::is_exporting() const { return state_->pipeline->exports(); }

void Telemetry::set_groups(GroupMask groups) {
  if (get() == this) enable(groups);
}

Meter* Telemetry::meter(std::string_view scope) { return state_->metrics ? &state_->metrics->meter(scope) : nullptr; }

LogQueue* Telemetry::logs() { return state_->logs.get(); }

bool Telemetry::force_flush(std::chrono::milliseconds timeout) {
  if (get() != this) return true;
  std::unique_lock lock(state_->mutex);
  const std::uint64_t wanted = ++state_->flushes_requested;
  state_->woken.notify_all();
  state_->pipeline->wake();
  // A shutdown in another thread includes this flush.
  state_->done.wait_for(lock, timeout, [&] { return state_->flushes_done >= wanted || state_->is_stopped; });
  return state_->flushes_done >= wanted || (state_->is_stopped && !state_->is_abandoned);
}

void Telemetry::shutdown(std::chrono::milliseconds timeout) {
  if (state_->pid != getpid()) return;
  const std::lock_guard one_at_a_time(state_->shutdown_mutex);
  if (state_->is_shut_down.exchange(true)) return;
  internal::deactivate_session(*state_->session);
  signal_hook::restore();
  if (state_->logs) install_log_queue(nullptr);
  Telemetry* expected = this;
  active.compare_exchange_strong(expected, nullptr);
  bool is_stopped = false;
  {
    std::unique_lock lock(state_->mutex);
    state_->is_stopping = true;
    state_->deadline = Clock::now() + timeout;
    state_->woken.notify_all();
    state_->pipeline->wake();
    is_stopped = state_->done.wait_for(lock, timeout + kGrace, [this] { return state_->is_stopped; });
    if (!is_stopped) state_->is_abandoned = true;
  }
  if (is_stopped) {
    state_->thread.join();
  } else {
    state_->thread.detach();
    std::fprintf(stderr, "telemetry: the exporters did not finish within %lld ms and are left behind\n",
                 static_cast<long long>(timeout.count()));
  }
  state_->session->header->is_shut_down.store(1, std::memory_order_release);
  report_losses(counts());
}

void Telemetry::discard_ring() {
  if (state_->is_shut_down.load()) put_previous_ring_back(state_->ring_path);
}

TelemetryCounts Telemetry::counts() const {
  TelemetryCounts counts;
  counts.signals = state_->count_items();
  const ItemCounts& spans = counts.signals[static_cast<std::size_t>(otlp::Signal::kTraces)];
  counts.exported = spans.exported;
  counts.failed_exports = lost(spans);
  counts.recorded = internal::count_records(*state_->session);
  counts.refused = state_->session->refused.load();
  counts.dropped_attributes = state_->session->dropped_attributes.load();
  if (state_->logs) counts.suppressed_logs = state_->logs->counts().suppressed;
  const std::lock_guard lock(state_->mutex);
  counts.overwritten = state_->num_overwritten;
  counts.truncated = state_->num_truncated;
  return counts;
}

const std::filesystem::path& Telemetry::ring_path() const { return state_->ring_path; }

}  // namespace pharos::lens
