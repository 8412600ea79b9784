// Goodput of a run over all its attempts: what of the time from the first start to the last end went into steps whose
// results are still there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "pharos/train/attempts/attempt_record.h"

namespace pharos::train {

/// Seconds by kind, without overlap: the kinds add up to `wall`.
struct GoodputSeconds {
  double useful_steps = 0;
  double lost_steps = 0;  ///< thrown away: a later attempt began at an earlier step, or no checkpoint holds them
  double start_up = 0;
  double evaluation = 0;
  double save = 0;
  double unaccounted = 0;  ///< between those: logging, leaving, what a lost attempt did after its last line
  double waiting = 0;      ///< between the end of one attempt and the start of the next
  double wall = 0;
  double data_wait = 0;  ///< part of the steps

  GoodputSeconds& operator+=(const GoodputSeconds& other);
  /// Time in useful steps over the whole, 0 … 1; 0 where no time has passed.
  double goodput() const;
  /// The same over the whole without waiting.
  double goodput_while_running() const;
};

struct AttemptAccount {
  AttemptRecord record;
  bool is_open = false;  ///< no end is known: it runs, or it died without a word; counted up to its last sign of life
  std::int64_t steps = 0;
  std::int64_t useful_steps = 0;
  GoodputSeconds seconds = {};  ///< `waiting` is the time before this attempt, and part of its `wall`
};

struct GoodputReport {
  std::string run_id;
  std::vector<AttemptAccount> attempts;
  GoodputSeconds seconds;
  std::int64_t steps = 0, useful_steps = 0;
  std::int64_t num_damaged_lines = 0;
  std::vector<std::string> node_failures = {};  ///< what SLURM said of lost nodes in the logs of the run's jobs
};

/// Steps of attempt i that no later attempt did again and that a checkpoint holds, or that the running attempt may
/// still save. Time of the steps of an attempt is divided by their number. What was
/// measured counts in full where a clock that stepped back leaves less time between the start of an attempt and its
/// end, or puts the start before the end of the attempt before.
GoodputReport compute_goodput(AttemptHistory history);

/// Of a run folder, with the node failures of its slurm-JOB.log; an attempt without an end is completed from its
/// metrics.jsonl. UserError when there is no attempts.jsonl, it cannot be read, or holds no attempt.
GoodputReport read_goodput(const std::filesystem::path& run_folder);

}  // namespace pharos::train
