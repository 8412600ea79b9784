#include "pharos/train/report/metrics_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "pharos/base/file.h"
#include "pharos/base/untrusted/regular_file.h"

namespace pharos::train {
namespace {

/// The lines of `path` whose step is at most `last_step`.
std::string kept_lines(const std::filesystem::path& path, std::int64_t last_step) {
  std::string kept;
  std::istringstream lines(base::read_regular_file(path));
  for (std::string line; std::getline(lines, line);) {
    const auto parsed = nlohmann::json::parse(line, nullptr, false);
    if (parsed.is_object() && parsed.value("step", std::int64_t{-1}) <= last_step) kept += line + "\n";
  }
  return kept;
}

}  // namespace

MetricsLog::MetricsLog(std::filesystem::path path, std::int64_t last_step) : path_(std::move(path)) {
  if (std::filesystem::exists(path_)) base::write_file_atomically(path_, kept_lines(path_, last_step));
  descriptor_ = base::open_regular_file(path_, O_WRONLY | O_CREAT | O_APPEND);
}

MetricsLog::~MetricsLog() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void MetricsLog::append(const nlohmann::json& line) {
  if (descriptor_ < 0) return;
  const std::string text = line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const ssize_t written = ::write(descriptor_, text.data(), text.size());
  if (written == static_cast<ssize_t>(text.size()) || failed_) return;
  failed_ = true;
  std::cerr << "warning: '" << path_.string() << "' could not be written (" << std::strerror(errno)
            << "); training goes on, metrics are missing from here.\n";
}

}  // namespace pharos::train
