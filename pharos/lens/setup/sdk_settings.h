// The variables that the OpenTelemetry SDK reads beside nemo-lens's own (lens.md sections 1.4 and 1.5; OpenTelemetry
// specification, "Environment Variable Specification"). As that specification says, an empty value counts as none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pharos/lens/data/log_data.h"
#include "pharos/lens/metrics/options.h"
#include "pharos/lens/variables/environment.h"

namespace pharos::lens {

/// OTEL_BSP_* for spans, OTEL_BLRP_* for logs. All values are above 0, and a batch is not larger than the queue.
struct BatchSettings {
  std::int64_t schedule_delay_ms;
  std::int64_t max_queue_size;
  std::int64_t max_export_batch_size;
  std::int64_t export_timeout_ms;
};

/// OTEL_TRACES_SAMPLER and its argument. always_on is ratio 1, always_off ratio 0.
struct SamplerSettings {
  bool is_parent_based = true;  ///< a span with a parent does what the parent does
  double ratio = 1.0;           ///< 0 … 1 of the traces, by trace id
};

/// How many attributes, events and links are kept; the oldest go first. Lengths are in characters.
struct LimitSettings {
  std::int64_t span_attributes = 128;
  std::int64_t span_events = 128;
  std::int64_t span_links = 128;
  std::int64_t event_attributes = 128;
  std::int64_t link_attributes = 128;
  std::int64_t log_attributes = 128;
  std::optional<std::int64_t> span_attribute_length = {};  ///< nullopt: not cut
  std::optional<std::int64_t> log_attribute_length = {};
};

/// The queue of spans holds 65536 where the SDK's holds 2048: a profiled step ends thousands of spans at once, and a
/// queued span is small here.
struct SdkSettings {
  bool is_disabled = false;  ///< OTEL_SDK_DISABLED: sites stay enabled, nothing is recorded
  BatchSettings spans{5000, 65536, 512, 30000};
  BatchSettings logs{1000, 2048, 512, 30000};
  SamplerSettings sampler;
  LimitSettings limits;
  std::int64_t metric_interval_ms = 10000;  ///< as nemo-lens; the SDK's own is 60000
  std::int64_t metric_timeout_ms = 30000;   ///< of one collection and export
  ExemplarFilter exemplar_filter = ExemplarFilter::kTraceBased;
  TemporalityPreference temporality = TemporalityPreference::kCumulative;
  HistogramAggregation histogram_aggregation = HistogramAggregation::kExplicit;
  bool propagates_trace_context = true;        ///< OTEL_PROPAGATORS; exporting ranks do both whatever it says
  bool propagates_baggage = true;              ///< (lens.md section 7.1)
  std::optional<Severity> logging_level = {};  ///< MEGATRON_LOGGING_LEVEL; nullopt: not set
};

/// Reads all of them. A metric interval, batch size, queue or limit that is a number nobody can obey, or an interval or
/// limit that is none, is a UserError naming the variable; other doubtful values are left at their default and said in
/// `warnings`, one sentence each, as the SDK does.
SdkSettings load_sdk_settings(const Environment& environment, std::vector<std::string>& warnings);

}  // namespace pharos::lens
