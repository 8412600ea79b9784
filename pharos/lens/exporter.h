// Finished spans as data, and where they go. Exporters run on the exporter thread only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "pharos/lens/span.h"

namespace pharos::lens {

using StoredValue = std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>>;

/// In the order they were set first.
using StoredAttributes = std::vector<std::pair<std::string, StoredValue>>;

enum class StatusCode : std::uint8_t { kUnset = 0, kOk = 1, kError = 2 };

struct SpanEvent {
  std::string name;
  std::int64_t time_ns = 0;  ///< CLOCK_MONOTONIC
  StoredAttributes attributes;
};

/// One span as read from a ring. Times are CLOCK_MONOTONIC; Resource converts them.
struct SpanData {
  std::string name;
  Group group = Group::kJob;
  bool is_ungated = false;  ///< made by span_cm: `group` means nothing
  Scope scope = Scope::kHelpers;
  SpanContext context;
  std::uint64_t parent_span_id = 0;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;         ///< 0: still open (only when read from the ring of a process that died)
  std::uint32_t thread_index = 0;  ///< which of the process's recording threads
  StatusCode status = StatusCode::kUnset;
  std::string status_description;
  StoredAttributes attributes;
  std::vector<SpanEvent> events;
  std::vector<SpanContext> links;
  std::uint32_t num_dropped_attributes = 0;
  bool is_cut = false;  ///< a text did not fit and was cut
};

/// Who sent the spans, and how its monotonic clock relates to wall time.
struct Resource {
  StoredAttributes attributes;
  std::int64_t wall_anchor_ns = 0;
  std::int64_t monotonic_anchor_ns = 0;

  std::int64_t to_wall_ns(std::int64_t monotonic_ns) const {
    return wall_anchor_ns + (monotonic_ns - monotonic_anchor_ns);
  }
};

/// Compact JSON of one span without newline (lens.md section 8.4). NaN and infinities are strings: "NaN", "Infinity".
std::string to_json_line(const SpanData& span, const Resource& resource);

class SpanExporter {
 public:
  virtual ~SpanExporter() = default;
  /// What to call it in a message.
  virtual std::string name() const = 0;
  /// Throws std::exception when the batch could not be delivered; it is then counted as failed and not offered again.
  virtual void export_spans(const std::vector<SpanData>& spans, const Resource& resource) = 0;
};

/// JSON lines to a file descriptor, for the console 1. A batch is one write.
std::shared_ptr<SpanExporter> make_console_exporter(int descriptor = 1);

/// JSON lines appended to `path`; opened at the first batch, again after a failure. A line is whole or absent: what a
/// full disk cut off is removed.
std::shared_ptr<SpanExporter> make_file_exporter(std::filesystem::path path);

/// Keeps spans, for tests.
class MemoryExporter : public SpanExporter {
 public:
  std::string name() const override { return "memory"; }
  void export_spans(const std::vector<SpanData>& spans, const Resource& resource) override;
  /// In order of arrival.
  std::vector<SpanData> spans() const;
  Resource resource() const;
  void clear();

 private:
  mutable std::mutex mutex_;
  std::vector<SpanData> spans_;
  Resource resource_;
};

}  // namespace pharos::lens
