// OTLP protobuf messages of telemetry data (opentelemetry-proto 1.x, the collector services' export requests).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "pharos/lens/data/log_data.h"
#include "pharos/lens/data/metric_data.h"
#include "pharos/lens/data/resource.h"
#include "pharos/lens/data/span_data.h"

namespace pharos::lens::otlp {

/// ExportTraceServiceRequest: one resource block, one scope block per scope name. Monotonic times become Unix times.
std::string encode_traces(std::span<const SpanData> spans, const Resource& resource);

/// ExportMetricsServiceRequest.
std::string encode_metrics(const MetricsData& metrics, const Resource& resource);

/// ExportLogsServiceRequest.
std::string encode_logs(std::span<const LogData> logs, const Resource& resource);

}  // namespace pharos::lens::otlp
