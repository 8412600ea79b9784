// Loggers, and the bridge from the training loop's own console lines.
#pragma once

#include <exception>
#include <initializer_list>
#include <string>
#include <string_view>

#include "pharos/lens/attribute.h"
#include "pharos/lens/logs/log_queue.h"
#include "pharos/lens/logs/source_location.h"

namespace pharos::lens {

/// Where records go from here on; null: nowhere. The queue must outlive every thread that may log while it is
/// installed. Returns the one before.
LogQueue* install_log_queue(LogQueue* queue);

/// The installed queue; null if there is none. One load.
LogQueue* installed_log_queue();

/// Named source of records; the name becomes the instrumentation scope. Every method is a load and a branch when no
/// queue is installed.
///
///     const lens::Logger logger("pharos.checkpoint");
///     logger.warn("file system is slow", {{"megatron.checkpoint.seconds", seconds}});
class Logger {
 public:
  using Attributes = std::initializer_list<Attribute>;
  using Location = SourceLocation;

  explicit Logger(std::string name) : name_(std::move(name)) {}

  void debug(std::string_view body, Attributes attributes = {}, Location location = Location::current()) const {
    log(Severity::kDebug, body, attributes, location);
  }
  void info(std::string_view body, Attributes attributes = {}, Location location = Location::current()) const {
    log(Severity::kInfo, body, attributes, location);
  }
  void warn(std::string_view body, Attributes attributes = {}, Location location = Location::current()) const {
    log(Severity::kWarn, body, attributes, location);
  }
  void error(std::string_view body, Attributes attributes = {}, Location location = Location::current()) const {
    log(Severity::kError, body, attributes, location);
  }
  void fatal(std::string_view body, Attributes attributes = {}, Location location = Location::current()) const {
    log(Severity::kFatal, body, attributes, location);
  }
  void log(Severity severity, std::string_view body, Attributes attributes = {},
           Location location = Location::current()) const;

  /// An error with exception.type (without its namespace) and exception.message.
  void error(std::string_view body, const std::exception& exception, Location location = Location::current()) const;

  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

/// A line of the run's own console or log.txt, beside which it is exported; scope "pharos". A newline at the end is
/// left out, an empty line is ignored.
void log_line(Severity severity, std::string_view text, SourceLocation location = SourceLocation::current());

}  // namespace pharos::lens
