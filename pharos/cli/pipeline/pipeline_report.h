// What `pharos pipeline report` does.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

namespace pharos::cli {

struct PipelineReportOptions {
  std::string run_folder = {};
  std::optional<std::int64_t> step = std::nullopt;  ///< default: mean of all but the first
  std::int64_t replica = 0;                         ///< the pipeline, by the global rank that is first in it
  std::string format = "text";                      ///< text, json, svg
  std::string output = {};                          ///< file; empty: `out`
};

/// Writes the bubble report of a run (docs/bubble.md) to the file or to `out`; warnings go to `warnings`. UserError for
/// a folder that is no run, or one in which no pipeline was measured.
void report_pipeline(const PipelineReportOptions& options, std::ostream& out, std::ostream& warnings);

}  // namespace pharos::cli
