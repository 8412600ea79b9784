// --time and --signal as sbatch reads them.
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

/// Seconds before the time limit at which SLURM sends the signal of "[{R|B}:]SIGNAL[@SECONDS]"; 60 when it does not
/// say. UserError for all else, and for a signal that SLURM does not know.
std::int64_t parse_signal(std::string_view text);

}  // namespace pharos::launch::slurm
