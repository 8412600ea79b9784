// The end of the job as the scheduler has set it, and how long the parts of a run take: what may still be begun.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "pharos/lens/variables/environment.h"
#include "pharos/train/data/data_feed.h"

namespace pharos::train {

/// When this job ends at the latest, in seconds since 1970: PHAROS_TIME_LIMIT_END, else SLURM_JOB_END_TIME; nullopt
/// where neither is set, or the second is 0 (Slurm: no limit). UserError when the first is no time; when the second is
/// none, `warning` says that no limit is kept.
std::optional<double> find_time_limit_end(const lens::Environment& environment, std::string& warning);

/// Expected durations in seconds: the longest measured one where something has been measured.
class Durations {
 public:
  /// `save_bytes`: what a checkpoint holds; a first save is expected to get 100 MB/s.
  explicit Durations(std::int64_t save_bytes = 0) : save_s_(static_cast<double>(save_bytes) / 1e8) {}

  /// A step with all that belongs to it. The first of a process carries one-time work and counts until there is
  /// another.
  void add_step(double seconds);
  void add_save(double seconds);
  void add_evaluation(DataSplit split, double seconds);

  /// The longest of the last ten steps; 0 before the first.
  double step_s() const;
  double save_s() const { return save_s_; }
  /// `num_samples`: of the whole evaluation; `step_samples`: of one step. Before the first one of that split: as long
  /// as the other's, else half a step (forward is a third of its work) for as many samples.
  double evaluation_s(DataSplit split, std::int64_t num_samples, std::int64_t step_samples) const;

 private:
  std::deque<double> steps_;
  std::int64_t num_steps_ = 0;
  double save_s_ = 0;
  bool has_saved_ = false;
  std::array<std::optional<double>, 3> evaluations_;  ///< by split
};

}  // namespace pharos::train
