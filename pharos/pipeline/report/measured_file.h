// What pipelines measured, in the folder of a run: RUN/trace/pipeline_rank_NNNNN.jsonl, a file per global rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

#include "pharos/pipeline/measured.h"

namespace pharos::pipeline {

/// The file of one rank. Each step is one self-contained line (docs/bubble.md has its keys); the kernel has it when
/// append() returns, so that it outlives the process.
class MeasuredFile {
 public:
  /// Opens or makes the file of `global_rank` under `run_folder`; what a run before wrote stays. UserError when it
  /// cannot be written, here and in append().
  MeasuredFile(const std::filesystem::path& run_folder, std::int64_t global_rank);
  void append(const MeasuredStep& step);

 private:
  std::filesystem::path path_;
  std::ofstream stream_;
};

constexpr std::size_t kMostMeasuredSteps = 200;

/// The last kMostMeasuredSteps steps of each rank, or of all steps `only_step`; ordered by step, replica and rank in
/// the pipeline. A step that a resumed run did again counts as it was last. Lines that are no JSON (cut off when a
/// process was killed) are left out and counted in `num_damaged_lines`. UserError with file and line for JSON that is
/// no measured step. Empty without such files.
std::vector<MeasuredStep> read_measured_steps(const std::filesystem::path& run_folder,
                                              std::int64_t* num_damaged_lines = nullptr,
                                              std::optional<std::int64_t> only_step = std::nullopt);

}  // namespace pharos::pipeline
