// Spans added up by name, whatever they stood under.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pharos/lens/data/span_data.h"

namespace pharos::lens {

/// The span whose time is "the step" (megatron-telemetry.md section 1.4).
inline constexpr std::string_view kStepSpan = "megatron.train.iteration";

/// Times of the ended spans of one name; unfinished ones are only counted, their length means nothing.
struct SpanTotals {
  std::string name;
  std::uint64_t count = 0;           ///< spans that ended; without any, all times are 0
  std::uint64_t num_unfinished = 0;  ///< still open, or ended by the shutdown of telemetry
  std::int64_t total_ns = 0;
  double mean_ns = 0;
  std::int64_t p50_ns = 0;  ///< nearest rank: the smallest duration that at least 50 % of the spans do not exceed
  std::int64_t p99_ns = 0;  ///< the same with 99 %; the maximum for less than 100 spans
  /// total_ns / time of all ended `megatron.train.iteration` spans; none without such a span. Spans outside of steps
  /// (start-up, checkpoints) are measured by the same yardstick and may exceed 1.
  std::optional<double> share_of_step;
};

/// Longest total first, then by name.
std::vector<SpanTotals> total_by_name(const std::vector<SpanData>& spans, const std::vector<SpanData>& open_spans);

/// Nearest-rank percentile (rank ⌈percent/100 · n⌉) of durations in ascending order; 0 when there are none. percent in
/// (0, 100].
std::int64_t nearest_rank(const std::vector<std::int64_t>& sorted, int percent);

}  // namespace pharos::lens
