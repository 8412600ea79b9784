// Where telemetry data goes, beside OTLP. Exporters run on the exporter thread only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "pharos/lens/data/log_data.h"
#include "pharos/lens/data/metric_data.h"
#include "pharos/lens/data/resource.h"
#include "pharos/lens/data/span_data.h"

namespace pharos::lens {

/// Compact JSON of one span without newline (lens.md section 8.4). NaN and infinities are strings: "NaN", "Infinity".
std::string to_json_line(const SpanData& span, const Resource& resource);

/// {"counters": NAME, "start_time", "end_time", "attributes", "resource"}.
std::string to_json_line(const CounterEvent& event, const Resource& resource);

/// The same of one collection of metrics and of one log record.
std::string to_json_line(const MetricsData& metrics, const Resource& resource);
std::string to_json_line(const LogData& log, const Resource& resource);

/// What is not overridden is not wanted. A member throws std::exception when the batch could not be delivered; it is
/// then counted as failed and not offered again.
class Exporter {
 public:
  virtual ~Exporter() = default;
  /// What to call it in a message.
  virtual std::string name() const = 0;
  virtual void export_spans(const std::vector<SpanData>& /*spans*/, const Resource& /*resource*/) {}
  virtual void export_metrics(const MetricsData& /*metrics*/, const Resource& /*resource*/) {}
  virtual void export_logs(const std::vector<LogData>& /*logs*/, const Resource& /*resource*/) {}
};

/// JSON lines of all three signals to a file descriptor, for the console 1. A batch is one write.
std::shared_ptr<Exporter> make_console_exporter(int descriptor = 1);

/// A file for each signal; an empty path: that signal is not written.
struct ExportFiles {
  std::filesystem::path spans = {};
  std::filesystem::path metrics = {};
  std::filesystem::path logs = {};
};

/// Files of metrics and logs in the folder of `spans`: beside spans_rank_3.jsonl these are metrics_rank_3.jsonl and
/// logs_rank_3.jsonl; of another name, metrics_NAME and logs_NAME.
ExportFiles export_files_beside(const std::filesystem::path& spans);

/// JSON lines appended to the files; each is opened at its first batch, again after a failure. A line is whole or
/// absent: what a full disk cut off is removed.
std::shared_ptr<Exporter> make_file_exporter(const ExportFiles& files);

/// With export_files_beside(path).
std::shared_ptr<Exporter> make_file_exporter(const std::filesystem::path& path);

/// Keeps everything, for tests.
class MemoryExporter : public Exporter {
 public:
  std::string name() const override { return "memory"; }
  void export_spans(const std::vector<SpanData>& spans, const Resource& resource) override;
  void export_metrics(const MetricsData& metrics, const Resource& resource) override;
  void export_logs(const std::vector<LogData>& logs, const Resource& resource) override;
  /// In order of arrival.
  std::vector<SpanData> spans() const;
  std::vector<MetricsData> metrics() const;
  std::vector<LogData> logs() const;
  Resource resource() const;
  void clear();

 private:
  mutable std::mutex mutex_;
  std::vector<SpanData> spans_;
  std::vector<MetricsData> metrics_;
  std::vector<LogData> logs_;
  Resource resource_;
};

}  // namespace pharos::lens
