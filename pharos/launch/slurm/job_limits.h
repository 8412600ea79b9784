// --time, --signal and --array as sbatch reads them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pharos::launch::slurm {

/// Seconds of a time limit, rounded up to SLURM's whole minutes: "minutes", "minutes:seconds", "hours:minutes:seconds",
/// "days-hours", "days-hours:minutes", "days-hours:minutes:seconds". nullopt: no limit ("0", "infinite", "unlimited").
/// UserError for all else.
std::optional<std::int64_t> parse_time_limit(std::string_view text);

/// "[{R|B}:]SIGNAL[@SECONDS]".
struct LimitSignal {
  int number = 0;
  std::int64_t seconds = 60;  ///< before the time limit
  bool is_of_shell = false;   ///< B: the batch shell gets it, not the ranks
};

/// UserError for all else, and for a signal that SLURM does not know.
LimitSignal parse_signal(std::string_view text);

/// The first task of "FIRST[-LAST[:STEP]],…[%MOST]" of --array. UserError for what sbatch would not take, or would take
/// for no task at all.
std::string first_of_array(std::string_view text);

}  // namespace pharos::launch::slurm
