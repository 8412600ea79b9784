// Which spans are recorded: the samplers of OpenTelemetry and the one that looks at the rank (lens.md
// sections 1.5, 3.3).
//
// A span that is not sampled records nothing, but has valid ids, is current, and has children and an injected
// traceparent like any other, without the sampled flag.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pharos/lens/span.h"

namespace pharos::lens {

/// Decides once per span, at its start; called by any thread, must not block.
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// `parent` is all zero for the root of a trace; the ids are those of the span's trace.
  virtual bool is_sampled(const SpanContext& parent, std::uint64_t trace_id_high, std::uint64_t trace_id_low) const = 0;
  /// For logs: "TraceIdRatioBased{0.25}".
  virtual std::string description() const = 0;
};

using SamplerPointer = std::shared_ptr<const Sampler>;

/// Everything, also below an unsampled parent. (A session without a sampler follows the parent at no cost.)
SamplerPointer make_always_on_sampler();
SamplerPointer make_always_off_sampler();

/// Traces whose id, taken modulo 2^64, is less than `ratio`·2^64: the same traces in every process. `ratio` is clamped
/// to [0, 1]; NaN counts as 1.
SamplerPointer make_trace_id_ratio_sampler(double ratio);

/// What the parent says; `root` decides about spans without one.
SamplerPointer make_parent_based_sampler(SamplerPointer root);

/// The same answer for all spans of a process: sampling_bucket(rank) / 10000 < `rate` (lens.md section 3.3). It looks
/// at neither parent nor trace; compose it with one that does.
SamplerPointer make_rank_aware_sampler(int rank, double rate);

/// Sampled if all of `samplers` agree. What nemo-lens's documentation promises and its code does not do: the rank-aware
/// sampler and OTEL_TRACES_SAMPLER at once (lens.md section 15, C1 and C2).
SamplerPointer make_composed_sampler(std::vector<SamplerPointer> samplers);

/// The sampler that OTEL_TRACES_SAMPLER names: always_on, always_off, traceidratio, each also parentbased_…; `argument`
/// is OTEL_TRACES_SAMPLER_ARG. Blank means parentbased_always_on. As in the OpenTelemetry SDK, an unknown name counts
/// as blank and an argument that is no number of [0, 1] as 1; `warning` then says so, else it is empty.
SamplerPointer make_sampler(std::string_view name, std::string_view argument, std::string& warning);

/// MD5 of the decimal digits of `rank`, as a number modulo 10000 (lens.md section 3.1).
int sampling_bucket(int rank);

}  // namespace pharos::lens
