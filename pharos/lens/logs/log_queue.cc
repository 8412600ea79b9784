#include "pharos/lens/logs/log_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "pharos/base/clock.h"
#include "pharos/lens/logs/severity.h"
#include "pharos/lens/record/payload.h"
#include "pharos/lens/record/stored.h"

namespace pharos::lens {
namespace {

using internal::put_stored_attribute;

/// "ns::Type::run" of "void ns::Type::run(int) const". What it cannot take apart stays as it is.
std::string_view function_name(std::string_view signature) {
  std::string_view name = signature.substr(0, signature.find('('));
  int depth = 0;
  for (std::size_t i = name.size(); i > 0; --i) {
    if (name[i - 1] == '>') ++depth;
    if (name[i - 1] == '<') --depth;
    if (name[i - 1] == ' ' && depth == 0) return name.substr(i);
  }
  return name.empty() ? signature : name;
}

StoredAttributes make_attributes(const LogRecord& record, const SourceLocation& location) {
  StoredAttributes attributes;
  for (const Attribute& attribute : record.attributes) {
    if (attribute.key.empty() || attribute.value.type() == AttributeValue::Type::kNone) continue;
    const bool is_redacted =
        attribute.value.type() == AttributeValue::Type::kText && internal::is_redacted_key(attribute.key);
    put_stored_attribute(attributes, attribute.key,
                         internal::to_stored(is_redacted ? AttributeValue("[REDACTED]") : attribute.value));
  }
  put_stored_attribute(attributes, "code.file.path", std::string(location.file_name()));
  put_stored_attribute(attributes, "code.function.name", std::string(function_name(location.function_name())));
  put_stored_attribute(attributes, "code.line.number", static_cast<std::int64_t>(location.line()));
  return attributes;
}

}  // namespace

bool internal::TokenBucket::take(std::int64_t now_ns, double rate_per_second, double burst) {
  if (tokens_ < 0) {
    tokens_ = burst;
  } else {
    tokens_ = std::min(burst, tokens_ + static_cast<double>(now_ns - last_ns_) * 1e-9 * rate_per_second);
  }
  last_ns_ = now_ns;
  if (tokens_ < 1) return false;
  tokens_ -= 1;
  return true;
}

LogQueue::LogQueue(LogOptions options, std::function<std::int64_t()> clock)
    : options_(options), clock_(clock != nullptr ? std::move(clock) : &base::monotonic_ns) {}

bool LogQueue::emit(const LogRecord& record, const SourceLocation& location) {
  if (!is_enabled(record.severity)) return false;
  if (internal::fork_generation.load(std::memory_order_relaxed) != generation_) return false;
  std::uint64_t num_suppressed = 0;
  if (options_.rate_per_second > 0) {
    const std::int64_t now_ns = clock_();
    const std::lock_guard lock(mutex_);
    internal::TokenBucket& bucket = sites_[{location.file_name(), location.line()}];
    if (!bucket.take(now_ns, options_.rate_per_second, options_.burst)) {
      ++bucket.num_suppressed;
      ++counts_.suppressed;
      return false;
    }
    num_suppressed = std::exchange(bucket.num_suppressed, 0);
  }
  LogData log;
  log.observed_time_ns = base::wall_ns();
  log.time_ns = record.time_ns != 0 ? record.time_ns : log.observed_time_ns;
  log.severity = record.severity;
  log.severity_text = record.severity_text.empty() ? severity_text(record.severity) : std::string(record.severity_text);
  log.body = record.body;
  log.scope = record.scope;
  log.attributes = make_attributes(record, location);
  if (num_suppressed != 0) {
    log.attributes.emplace_back("megatron.log.suppressed", static_cast<std::int64_t>(num_suppressed));
  }
  log.context = current_context();
  if (!log.context) log.context = {.trace_flags = 0};

  const std::lock_guard lock(mutex_);
  if (records_.size() >= std::max<std::size_t>(options_.capacity, 1)) {
    records_.pop_front();
    ++counts_.dropped;
  }
  records_.push_back(std::move(log));
  ++counts_.emitted;
  return true;
}

std::vector<LogData> LogQueue::take(std::size_t max_records) {
  const std::lock_guard lock(mutex_);
  const auto end = records_.begin() + static_cast<std::ptrdiff_t>(std::min(max_records, records_.size()));
  std::vector<LogData> taken(std::make_move_iterator(records_.begin()), std::make_move_iterator(end));
  records_.erase(records_.begin(), end);
  return taken;
}

std::size_t LogQueue::size() const {
  const std::lock_guard lock(mutex_);
  return records_.size();
}

LogCounts LogQueue::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace pharos::lens
