#include "pharos/lens/exporter.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "pharos/base/clock.h"

namespace pharos::lens {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const StoredValue& value) {
  if (const double* number = std::get_if<double>(&value); number != nullptr && !std::isfinite(*number)) {
    return std::isnan(*number) ? "NaN" : *number > 0 ? "Infinity" : "-Infinity";
  }
  return std::visit([](const auto& typed) { return Json(typed); }, value);
}

Json to_json(const StoredAttributes& attributes) {
  Json object = Json::object();
  for (const auto& [key, value] : attributes) object[key] = to_json(value);
  return object;
}

std::string hexadecimal(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

Json to_json(const SpanContext& context) {
  return {{"trace_id", "0x" + hexadecimal(context.trace_id_high) + hexadecimal(context.trace_id_low)},
          {"span_id", "0x" + hexadecimal(context.span_id)},
          {"trace_state", "[]"}};
}

Json status_json(const SpanData& span) {
  constexpr const char* kNames[] = {"UNSET", "OK", "ERROR"};
  Json status = {{"status_code", kNames[static_cast<int>(span.status)]}};
  if (span.status == StatusCode::kError) status["description"] = span.status_description;
  return status;
}

/// Writes all of `text`; throws what the system said. Returns normally only when all is written.
void write_all(int descriptor, const std::string& text) {
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = ::write(descriptor, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw std::runtime_error(std::strerror(errno));
    written += static_cast<std::size_t>(count);
  }
}

std::string to_json_lines(const std::vector<SpanData>& spans, const Resource& resource) {
  std::string text;
  for (const SpanData& span : spans) {
    text += to_json_line(span, resource);
    text += '\n';
  }
  return text;
}

class ConsoleExporter : public Exporter {
 public:
  explicit ConsoleExporter(int descriptor) : descriptor_(descriptor) {}
  std::string name() const override { return "console"; }
  void export_spans(const std::vector<SpanData>& spans, const Resource& resource) override {
    write_all(descriptor_, to_json_lines(spans, resource));
  }

 private:
  int descriptor_;
};

class FileExporter : public Exporter {
 public:
  explicit FileExporter(std::filesystem::path path) : path_(std::move(path)) {}
  ~FileExporter() override { close_file(); }
  std::string name() const override { return "file " + path_.string(); }

  void export_spans(const std::vector<SpanData>& spans, const Resource& resource) override {
    open_file();
    const off_t size_before = lseek(descriptor_, 0, SEEK_END);
    try {
      write_all(descriptor_, to_json_lines(spans, resource));
    } catch (const std::exception&) {
      // A line cut in two would spoil the next one; where truncation fails too (a device, a pipe) nothing is lost by
      // it.
      if (ftruncate(descriptor_, size_before) != 0) errno = 0;
      close_file();
      throw;
    }
  }

 private:
  void open_file() {
    if (descriptor_ >= 0) return;
    descriptor_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (descriptor_ < 0) throw std::runtime_error(std::strerror(errno));
  }
  void close_file() {
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = -1;
  }

  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace

std::string to_json_line(const SpanData& span, const Resource& resource) {
  const auto time = [&resource](std::int64_t monotonic_ns) {
    return base::format_utc_time(resource.to_wall_ns(monotonic_ns));
  };
  Json line;
  line["name"] = span.name;
  line["context"] = to_json(span.context);
  line["kind"] = "SpanKind.INTERNAL";
  line["parent_id"] = span.parent_span_id != 0 ? Json("0x" + hexadecimal(span.parent_span_id)) : Json(nullptr);
  line["start_time"] = time(span.start_ns);
  line["end_time"] = span.end_ns != 0 ? Json(time(span.end_ns)) : Json(nullptr);
  line["status"] = status_json(span);
  line["attributes"] = to_json(span.attributes);
  line["events"] = Json::array();
  for (const SpanEvent& event : span.events) {
    line["events"].push_back(
        {{"name", event.name}, {"timestamp", time(event.time_ns)}, {"attributes", to_json(event.attributes)}});
  }
  line["links"] = Json::array();
  for (const SpanContext& link : span.links) {
    line["links"].push_back({{"context", to_json(link)}, {"attributes", Json::object()}});
  }
  line["resource"] = {{"attributes", to_json(resource.attributes)}, {"schema_url", ""}};
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::shared_ptr<Exporter> make_console_exporter(int descriptor) {
  return std::make_shared<ConsoleExporter>(descriptor);
}

std::shared_ptr<Exporter> make_file_exporter(std::filesystem::path path) {
  return std::make_shared<FileExporter>(std::move(path));
}

void MemoryExporter::export_spans(const std::vector<SpanData>& spans, const Resource& resource) {
  const std::lock_guard lock(mutex_);
  spans_.insert(spans_.end(), spans.begin(), spans.end());
  resource_ = resource;
}

void MemoryExporter::export_metrics(const MetricsData& metrics, const Resource& /*resource*/) {
  const std::lock_guard lock(mutex_);
  metrics_.push_back(metrics);
}

void MemoryExporter::export_logs(const std::vector<LogData>& logs, const Resource& /*resource*/) {
  const std::lock_guard lock(mutex_);
  logs_.insert(logs_.end(), logs.begin(), logs.end());
}

std::vector<MetricsData> MemoryExporter::metrics() const {
  const std::lock_guard lock(mutex_);
  return metrics_;
}

std::vector<LogData> MemoryExporter::logs() const {
  const std::lock_guard lock(mutex_);
  return logs_;
}

std::vector<SpanData> MemoryExporter::spans() const {
  const std::lock_guard lock(mutex_);
  return spans_;
}

Resource MemoryExporter::resource() const {
  const std::lock_guard lock(mutex_);
  return resource_;
}

void MemoryExporter::clear() {
  const std::lock_guard lock(mutex_);
  spans_.clear();
  metrics_.clear();
  logs_.clear();
}

}  // namespace pharos::lens
