// Log records on their way from any thread to the exporter thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "pharos/lens/attribute.h"
#include "pharos/lens/data/log_data.h"
#include "pharos/lens/logs/source_location.h"
#include "pharos/lens/record/fork.h"

namespace pharos::lens {

struct LogOptions {
  Severity minimum = Severity::kInfo;  ///< records below it are ignored; kUnspecified ones as well unless it is that
  std::size_t capacity = 2048;  ///< records that wait; the oldest goes when one more comes (OTEL_BLRP_MAX_QUEUE_SIZE)
  double rate_per_second = 10;  ///< per call site, in the long run; 0: unlimited
  double burst = 50;            ///< per call site, at once
};

/// What happened to records of at least the minimum level.
struct LogCounts {
  std::uint64_t emitted = 0;     ///< put into the queue
  std::uint64_t suppressed = 0;  ///< over the rate of their call site
  std::uint64_t dropped = 0;     ///< pushed out of a full queue (still counted in emitted)
};

namespace internal {

/// A rate with room for bursts. Full at first.
class TokenBucket {
 public:
  /// now_ns: monotonic. False when the rate is exceeded.
  bool take(std::int64_t now_ns, double rate_per_second, double burst);
  std::uint64_t num_suppressed = 0;  ///< since the last record that passed; the queue's

 private:
  double tokens_ = -1;
  std::int64_t last_ns_ = 0;
};

}  // namespace internal

/// A record before times, context and call site are added.
struct LogRecord {
  Severity severity = Severity::kInfo;
  std::string_view severity_text = {};  ///< empty: that of the severity
  std::string_view body = {};
  std::string_view scope = {};  ///< the logger's name
  std::span<const Attribute> attributes = {};
  std::int64_t time_ns = 0;  ///< Unix; 0: now
};

/// Thread-safe. emit() takes one mutex for less than a microsecond and never waits for an exporter.
class LogQueue {
 public:
  /// clock: monotonic nanoseconds; for tests.
  explicit LogQueue(LogOptions options = {}, std::function<std::int64_t()> clock = {});

  /// Adds the calling thread's current span and, behind the given attributes, code.file.path, code.function.name and
  /// code.line.number. Text of the keys that spans redact becomes "[REDACTED]". When records of this call site were
  /// suppressed since its last one, their number is attribute megatron.log.suppressed. False when the record was
  /// ignored or suppressed.
  bool emit(const LogRecord& record, const SourceLocation& location = SourceLocation::current());

  bool is_enabled(Severity severity) const { return severity >= options_.minimum; }

  /// Up to `max_records` of the oldest.
  std::vector<LogData> take(std::size_t max_records);
  std::size_t size() const;
  LogCounts counts() const;

  LogQueue(const LogQueue&) = delete;

 private:
  struct Site {
    const char* file;
    std::uint32_t line;
    bool operator==(const Site& other) const { return file == other.file && line == other.line; }
  };
  struct SiteHash {
    std::size_t operator()(const Site& site) const { return std::hash<const void*>{}(site.file) * 31 + site.line; }
  };

  const LogOptions options_;
  const std::function<std::int64_t()> clock_;
  const std::uint32_t generation_ = internal::watch_forks();
  mutable std::mutex mutex_;  ///< guards what follows
  std::deque<LogData> records_;
  std::unordered_map<Site, internal::TokenBucket, SiteHash> sites_;
  LogCounts counts_;
};

}  // namespace pharos::lens
