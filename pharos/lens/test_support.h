// For tests of whatever records spans: a session in memory or in a temporary folder, and look-ups in what it exported.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "pharos/lens/exporter.h"
#include "pharos/lens/life/telemetry.h"

namespace pharos::lens {

inline constexpr GroupMask kEveryGroup = (GroupMask{1} << kNumGroups) - 1;

/// A folder of its own for a test, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "lens_test_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// No file of this process may grow beyond a size: what a full disk does to an allocation of blocks.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t num_bytes) {
    before_handler_ = signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{num_bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, before_handler_);
  }

 private:
  rlimit before_{};
  void (*before_handler_)(int) = nullptr;
};

/// Telemetry into memory for the length of a scope.
class MemoryTelemetry {
 public:
  explicit MemoryTelemetry(GroupMask groups = kEveryGroup, TelemetryOptions options = {}) {
    options.groups = groups;
    options.pipeline.exporters.push_back(exporter_);
    telemetry_ = &Telemetry::init(std::move(options));
  }
  ~MemoryTelemetry() { telemetry_->shutdown(); }

  Telemetry& telemetry() { return *telemetry_; }
  /// Everything that has ended, in order of arrival.
  std::vector<SpanData> spans() {
    EXPECT_TRUE(telemetry_->force_flush());
    return exporter_->spans();
  }
  /// The only span of that name.
  SpanData span(const std::string& name) {
    SpanData found;
    int count = 0;
    for (SpanData& span : spans()) {
      if (span.name != name) continue;
      found = span;
      ++count;
    }
    EXPECT_EQ(count, 1) << name;
    return found;
  }

 private:
  std::shared_ptr<MemoryExporter> exporter_ = std::make_shared<MemoryExporter>();
  Telemetry* telemetry_;
};

/// Value of an attribute; the text "absent" when there is none.
inline StoredValue attribute(const SpanData& span, const std::string& key) {
  for (const auto& [known, value] : span.attributes) {
    if (known == key) return value;
  }
  return std::string("absent");
}

}  // namespace pharos::lens
