// The life of telemetry in a process: initialise, flush, shut down. Everything here is cold.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pharos/lens/exporter.h"
#include "pharos/lens/group.h"
#include "pharos/lens/record/limits.h"
#include "pharos/lens/sampler.h"

namespace pharos::lens {

struct TelemetryOptions {
  GroupMask groups = 0;  ///< parse_groups("default"), …
  std::string service_name = "pharos";
  int rank = 0;
  int world_size = 1;
  std::filesystem::path run_folder = {};  ///< trace/rank_N.ring and trace/spans.jsonl go below it; empty: no files
  bool ring_file = true;                  ///< false: the ring lives in memory and dies with the process
  bool console_exporter = false;          ///< JSON lines on standard output
  bool file_exporter = false;             ///< the same lines in trace/spans.jsonl (trace/spans_rank_N.jsonl for N > 0)
  std::vector<std::shared_ptr<Exporter>> exporters = {};  ///< more of them, for example a MemoryExporter
  std::vector<std::pair<std::string, std::string>> resource_attributes = {};
  std::chrono::milliseconds export_interval{500};
  std::uint32_t ring_records = 8192;            ///< per recording thread; the oldest are overwritten
  RecordLimits limits = {};                     ///< of attributes, events and links of a span
  std::shared_ptr<const Sampler> sampler = {};  ///< null: all spans but those below an unsampled one
};

/// What happened to spans so far. Nothing is lost without being counted here.
struct TelemetryCounts {
  std::uint64_t recorded = 0;            ///< ended spans written to a ring
  std::uint64_t exported = 0;            ///< spans given to every exporter without a failure
  std::uint64_t overwritten = 0;         ///< spans the exporter thread came too late for (still counted in recorded)
  std::uint64_t refused = 0;             ///< spans not recorded: over 64 open in a thread, or over 64 threads
  std::uint64_t dropped_attributes = 0;  ///< attributes for which a record had no room
  std::uint64_t failed_exports = 0;      ///< spans × exporters that failed
  std::uint64_t truncated = 0;           ///< spans still open at shutdown
};

/// Handle of the telemetry of this process. Objects live until the process ends; get() is null when none is active.
class Telemetry {
 public:
  /// Starts recording and the exporter thread. A second call while active is an InternalError; after shutdown() it is
  /// allowed. An unwritable run folder is a UserError. In a child made by fork telemetry is inactive.
  static Telemetry& init(TelemetryOptions options);

  /// Null before init(), after shutdown() and in a forked child.
  static Telemetry* get();

  /// Changes the enabled groups while running.
  void set_groups(GroupMask groups);

  /// Exports all spans that have ended. False if the exporter thread did not manage within `timeout`.
  bool force_flush(std::chrono::milliseconds timeout = std::chrono::milliseconds(5000));

  /// Turns all sites off, closes open spans (attribute and event `nemo.span.truncated`, status untouched; children
  /// before parents), exports and joins the exporter thread. An exporter that hangs is left behind after `timeout`.
  /// Only the first call does anything. Losses are said in one line on standard error.
  void shutdown(std::chrono::milliseconds timeout = std::chrono::milliseconds(5000));

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
