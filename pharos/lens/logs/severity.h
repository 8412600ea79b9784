// Severity numbers of OpenTelemetry, and what Python's logging levels become (lens.md section 10).
#pragma once

#include <string>
#include <string_view>

#include "pharos/lens/data/log_data.h"

namespace pharos::lens {

/// "DEBUG", "INFO", "WARN", "ERROR", "FATAL", with a digit for the numbers between: "INFO2"; "" for kUnspecified.
std::string severity_text(Severity severity);

/// Number of a Python level: 10 is kDebug, 20 kInfo, …; up to three above a level are the numbers in between; below 10
/// kUnspecified.
Severity severity_of_python_level(int level);

/// Text of a Python level: "DEBUG", "INFO", "WARN", "ERROR", "FATAL"; others as Python names them: "NOTSET", "Level
/// 25".
std::string text_of_python_level(int level);

/// kDebug … kFatal by name in any case; "warning" and "critical" are taken too. An unknown name is a UserError.
Severity parse_severity(std::string_view name);

}  // namespace pharos::lens
