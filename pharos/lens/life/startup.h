// How a run starts and how its trace is cut: the start-up record with its waterfall, and the chain of interval spans.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pharos/lens/span.h"
#include "pharos/lens/variables/environment.h"

namespace pharos::lens {

/// The phases between the start of the process and the end of the first step, without gaps: each phase begins where the
/// one before ended, so the parts add up to the whole. Belongs to one thread.
class StartupRecord {
 public:
  struct Phase {
    std::string name;
    std::int64_t start_ns;  ///< CLOCK_MONOTONIC
    std::int64_t duration_ns;
  };

  /// Begins at the start of the process, or at `start_ns` (CLOCK_MONOTONIC).
  StartupRecord();
  explicit StartupRecord(std::int64_t start_ns) : start_ns_(start_ns), last_ns_(start_ns) {}

  /// The time since the last phase (or the start) was `name`. A time before the last phase's end counts as its end.
  void finish_phase(std::string name);
  void finish_phase(std::string name, std::int64_t end_ns);

  const std::vector<Phase>& phases() const { return phases_; }
  std::int64_t start_ns() const { return start_ns_; }
  /// Sum of the phases.
  std::int64_t total_ns() const { return last_ns_ - start_ns_; }

  /// One line a phase, `  name  ####  12.0 ms  34 %`: the bar begins where the phase begins. The last line is the
  /// total; numbers of milliseconds and percent are rounded such that they add up to it. No newline at the end.
  std::string render() const;

 private:
  std::int64_t start_ns_;
  std::int64_t last_ns_;
  std::vector<Phase> phases_;
};

/// What happened before the process began, as those who started it say (megatron-telemetry.md section 1.3). Times are
/// CLOCK_MONOTONIC; absent: not known.
struct LaunchStamps {
  std::optional<std::int64_t> scheduler_start_ns;  ///< SLURM_JOB_START_TIME
  std::optional<std::int64_t> script_start_ns;     ///< LENS_LAUNCH_SCRIPT_START_TIME
  std::optional<std::int64_t> before_launch_ns;    ///< LENS_LAUNCH_SCRIPT_PRESRUN_TIME
};

/// Seconds since 1970 in those variables; what is no such number counts as absent. Under the restart agent of
/// nvidia-resiliency-ext (NVRX_LAUNCH_TIME) the agent's own time replaces or removes them.
LaunchStamps read_launch_stamps(const Environment& environment);

/// Opens the root span `megatron.startup`, back-dated to the record's start, and records its phases so far as children
/// (megatron-telemetry.md section 1.2): phase "libraries" as .imports, "config" as .arg_parse, "initialize" as
/// .initialize_megatron, "kernels" as .jit_fusion_options, any other as its own name with blanks as underscores. Phases
/// "data" and "model" are left out: .dataloader and .model_init are spans of their own. Behind .arg_parse come
/// .inprocess_setup and .in_job_setup, which take no time here. With stamps that fit together, pre_startup is recorded
/// as a trace of its own, and .launch_script and .container_load below a start-up that begins with the script.
/// Current until it ends, which belongs just before the loop.
ManagedSpan open_startup_span(const StartupRecord& record, std::string_view model_type,
                              const LaunchStamps& stamps = {});

/// The blocks of the training loop: a root span per `interval` passes, each linked to the one before
/// (megatron-telemetry.md section 1.1, "Interval rule"). With interval ≤ 0 or group `job` off nothing is recorded.
class IntervalSpans {
 public:
  /// `first_link`: what the first block refers to, usually the context of `megatron.startup`.
  IntervalSpans(std::string name, std::int64_t interval, SpanContext first_link = {})
      : name_(std::move(name)), interval_(interval), previous_(first_link) {}

  /// Top of each pass, skipped ones included.
  void next_pass();

  /// Ends the open block; so does the destructor.
  void finish() { block_.end(); }

 private:
  std::string name_;
  std::int64_t interval_;
  std::int64_t num_passes_ = 0;
  SpanContext previous_;
  ManagedSpan block_;
};

}  // namespace pharos::lens
