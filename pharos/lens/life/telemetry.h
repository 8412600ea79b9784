// The life of telemetry in a process: initialise, flush, shut down. Everything here is cold.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "pharos/lens/context/sampler.h"
#include "pharos/lens/data/stored_value.h"
#include "pharos/lens/group.h"
#include "pharos/lens/life/pipeline.h"
#include "pharos/lens/logs/log_queue.h"
#include "pharos/lens/metrics/options.h"
#include "pharos/lens/record/limits.h"

namespace pharos::lens {

class Meter;

struct TelemetryOptions {
  GroupMask groups = 0;  ///< parse_groups("default"), …
  std::string service_name = "pharos";
  int rank = 0;
  int world_size = 1;
  std::filesystem::path run_folder = {};  ///< trace/rank_N.ring and the exported lines go below it; empty: no files
  bool ring_file = true;                  ///< false: the ring lives in memory and dies with the process
  bool console_exporter = false;          ///< JSON lines on standard output
  bool file_exporter = false;             ///< the same lines in trace/spans.jsonl (trace/spans_rank_N.jsonl for N > 0)
  PipelineOptions pipeline = {};          ///< more exporters, OTLP, batches, intervals
  MetricOptions metrics = {};
  bool collects_metrics = true;  ///< where anything exports; else meter() is null
  bool collects_logs = false;    ///< likewise logs()
  LogOptions log_options = {};
  StoredAttributes resource_attributes = {};  ///< decide over what is known anyway (service.name, dl.rank, …)
  bool handles_signals = false;               ///< SIGTERM and SIGINT: shutdown(), then what they did before
  RecordLimits limits = {};                   ///< of attributes, events and links of a span
  SamplerPointer sampler = {};                ///< null: all spans but those below an unsampled one
  std::uint32_t ring_records = 8192;          ///< per recording thread; the oldest are overwritten
};

/// What happened to spans so far. Nothing is lost without being counted here: where spans are exported, after
/// shutdown() recorded + truncated = exported + overwritten + failed_exports.
struct TelemetryCounts {
  std::uint64_t recorded = 0;            ///< ended spans written to a ring
  std::uint64_t exported = 0;            ///< spans that arrived (ItemCounts)
  std::uint64_t overwritten = 0;         ///< spans the exporter thread came too late for (still counted in recorded)
  std::uint64_t refused = 0;             ///< spans not recorded: over 64 open in a thread, or over 64 threads
  std::uint64_t dropped_attributes = 0;  ///< attributes for which a record had no room
  std::uint64_t failed_exports = 0;      ///< spans that were dropped, failed or rejected on their way
  std::uint64_t truncated = 0;           ///< spans still open at shutdown (not counted in recorded)
  std::uint64_t suppressed_logs = 0;     ///< log records over the rate of their call site, never taken
  ExportCounts signals = {};             ///< all signals in detail
};

/// Handle of the telemetry of this process. Objects live until the process ends; get() is null when none is active.
class Telemetry {
 public:
  /// Starts recording and the exporter thread. A second call while active is an InternalError; after shutdown() it is
  /// allowed. An unwritable run folder or no room for another thread is a UserError, and so is a build without
  /// telemetry (PHAROS_LENS=OFF); then nothing has been changed. In a child made by fork telemetry is inactive.
  static Telemetry& init(TelemetryOptions options);

  /// Null before init(), after shutdown() and in a forked child.
  static Telemetry* get();

  /// Whether anything leaves this process: an exporter is there. Without one only the ring records.
  bool is_exporting() const;

  /// Changes the enabled groups while running.
  void set_groups(GroupMask groups);

  /// Instruments of a scope; null where no metrics are exported.
  Meter* meter(std::string_view scope = "nemo.lens");

  /// Takes log records; null where none are exported.
  LogQueue* logs();

  /// Exports all spans that have ended, all log records, and metrics as they stand. False if not all of it was
  /// delivered or given up within `timeout`.
  bool force_flush(std::chrono::milliseconds timeout = std::chrono::milliseconds(5000));

  /// Turns all sites off, closes open spans (attribute and event `nemo.span.truncated`, status untouched; children
  /// before parents), exports and joins the exporter thread. What a receiver has not taken after `timeout` is given up
  /// and counted; a local exporter that hangs is left behind half a second later, and what it holds is counted as
  /// failed. Only the first call does anything; one beside it waits for it. Losses are said on standard error.
  void shutdown(std::chrono::milliseconds timeout = std::chrono::milliseconds(5000));

  /// After shutdown() of a run that never began: removes its ring file and puts the one of the run before back.
  void discard_ring();

  TelemetryCounts counts() const;
  const std::filesystem::path& ring_path() const;

  Telemetry(const Telemetry&) = delete;
  ~Telemetry();

 private:
  struct State;
  explicit Telemetry(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace pharos::lens
