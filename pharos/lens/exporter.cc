#include "pharos/lens/exporter.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace pharos::lens {
namespace {

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

template <typename Record>
std::string to_json_lines(const std::vector<Record>& records, const Resource& resource) {
  std::string text;
  for (const Record& record : records) {
    text += to_json_line(record, resource);
    text += '\n';
  }
  return text;
}

class ConsoleExporter : public Exporter {
 public:
  explicit ConsoleExporter(int descriptor)
      : descriptor_(descriptor), is_open_(fcntl(descriptor, F_GETFD) != -1 || errno != EBADF) {}
  std::string name() const override { return "console"; }
  void export_spans(const std::vector<SpanData>& spans, const Resource& resource) override {
    write(to_json_lines(spans, resource));
  }
  void export_metrics(const MetricsData& metrics, const Resource& resource) override {
    if (!metrics.empty()) write(to_json_line(metrics, resource) + '\n');
  }
  void export_logs(const std::vector<LogData>& logs, const Resource& resource) override {
    write(to_json_lines(logs, resource));
  }

 private:
  void write(const std::string& lines) const {
    // By now the number may be that of a file or a socket that was opened later.
    if (!is_open_) throw std::runtime_error("the output was closed before the program began");
    write_all(descriptor_, lines);
  }

  int descriptor_;
  bool is_open_;
};

/// A file of whole lines; an empty path swallows them.
class LineFile {
 public:
  explicit LineFile(std::filesystem::path path) : path_(std::move(path)) {}
  ~LineFile() { close_file(); }
  LineFile(const LineFile&) = delete;

  void append(const std::string& lines) {
    if (path_.empty() || lines.empty()) return;
    open_file();
    const off_t size_before = lseek(descriptor_, 0, SEEK_END);
    try {
      write_all(descriptor_, lines);
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

class FileExporter : public Exporter {
 public:
  explicit FileExporter(const ExportFiles& files)
      : name_("file " + files.spans.string()), spans_(files.spans), metrics_(files.metrics), logs_(files.logs) {}
  std::string name() const override { return name_; }
  void export_spans(const std::vector<SpanData>& spans, const Resource& resource) override {
    spans_.append(to_json_lines(spans, resource));
  }
  void export_metrics(const MetricsData& metrics, const Resource& resource) override {
    if (!metrics.empty()) metrics_.append(to_json_line(metrics, resource) + '\n');
  }
  void export_logs(const std::vector<LogData>& logs, const Resource& resource) override {
    logs_.append(to_json_lines(logs, resource));
  }

 private:
  std::string name_;
  LineFile spans_;
  LineFile metrics_;
  LineFile logs_;
};

}  // namespace

std::shared_ptr<Exporter> make_console_exporter(int descriptor) {
  return std::make_shared<ConsoleExporter>(descriptor);
}

ExportFiles export_files_beside(const std::filesystem::path& spans) {
  const std::string name = spans.filename().string();
  const auto beside = [&](const std::string& signal) {
    const bool is_named_so = name.starts_with("spans");
    return spans.parent_path() / (is_named_so ? signal + name.substr(5) : signal + "_" + name);
  };
  return {.spans = spans, .metrics = beside("metrics"), .logs = beside("logs")};
}

std::shared_ptr<Exporter> make_file_exporter(const ExportFiles& files) { return std::make_shared<FileExporter>(files); }

std::shared_ptr<Exporter> make_file_exporter(const std::filesystem::path& path) {
  return make_file_exporter(export_files_beside(path));
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
