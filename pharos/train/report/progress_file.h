// progress.txt beside the checkpoints: one tab-separated line per event of a run and its restarts (Megatron's
// --log-progress).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace pharos::train {

class ProgressFile {
 public:
  /// Appends to `path`; with `enabled` false nothing is written.
  ProgressFile(std::filesystem::path path, bool enabled, std::int64_t world_size);

  /// TIME \t Job ID: … \t # GPUs: WORLD_SIZE \t `event`. Job ID is SLURM_JOB_ID, empty outside SLURM.
  void append(const std::string& event) const;

 private:
  std::filesystem::path path_;
  bool enabled_;
  std::int64_t world_size_;
};

/// "Saved checkpoint\tIteration: …\tJob throughput: …\t…", megatron-telemetry.md 9.5.
/// job_flops: of all devices, since the job began.
std::string saved_checkpoint_event(std::int64_t iteration, double job_flops, double job_seconds, double total_flops,
                                   std::int64_t total_tokens, std::int64_t world_size);

}  // namespace pharos::train
