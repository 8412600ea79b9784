#include "pharos/lens/logs/logger.h"

#include <atomic>

#include "pharos/lens/record/payload.h"

namespace pharos::lens {
namespace {

constinit std::atomic<LogQueue*> installed{nullptr};

constexpr std::string_view kProgramScope = "pharos";

std::string_view without_namespace(std::string_view type) {
  const std::size_t position = type.substr(0, type.find('<')).rfind("::");
  return position == std::string_view::npos ? type : type.substr(position + 2);
}

}  // namespace

LogQueue* install_log_queue(LogQueue* queue) { return installed.exchange(queue, std::memory_order_acq_rel); }

LogQueue* installed_log_queue() { return installed.load(std::memory_order_acquire); }

void Logger::log(Severity severity, std::string_view body, Attributes attributes, Location location) const {
  LogQueue* queue = installed_log_queue();
  if (queue == nullptr) return;
  queue->emit(
      {.severity = severity, .body = body, .scope = name_, .attributes = {attributes.begin(), attributes.size()}},
      location);
}

void Logger::error(std::string_view body, const std::exception& exception, Location location) const {
  if (installed_log_queue() == nullptr) return;
  const std::string type = internal::type_name(exception);
  log(Severity::kError, body, {{"exception.type", without_namespace(type)}, {"exception.message", exception.what()}},
      location);
}

void log_line(Severity severity, std::string_view text, SourceLocation location) {
  LogQueue* queue = installed_log_queue();
  if (queue == nullptr) return;
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  if (text.empty()) return;
  queue->emit({.severity = severity, .body = text, .scope = kProgramScope}, location);
}

}  // namespace pharos::lens
