// Which ranks export: a registry of named rules (lens.md section 3).
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "pharos/lens/setup/lens_config.h"
#include "pharos/lens/variables/environment.h"

namespace pharos::lens {

/// What a rule may look at. Warnings are sentences; those about ranks that do not export at all are the
/// same on every rank, so print them on one.
struct StrategyInput {
  const LensConfig& config;
  int rank = 0;
  int world_size = 1;
  const Environment& environment;
  std::vector<std::string>& warnings;
};

using ExportStrategy = std::function<bool(const StrategyInput&)>;

/// Adds a rule. An empty name, or one that is taken unless `allow_override`, is an InternalError. All of the registry
/// may be used from several threads.
void register_export_strategy(const std::string& name, ExportStrategy strategy, bool allow_override = false);

/// Removes a rule. A built-in name, overridden or not, and an unknown one are InternalErrors.
void unregister_export_strategy(const std::string& name);

/// Names of all rules, sorted. Built in are all_ranks, first_rank_per_node, sampled and single_rank.
std::vector<std::string> registered_export_strategies();

/// UserError with all and the nearest names if there is no such rule; `source` says where the name was read.
void check_strategy_name(const std::string& name, const std::string& source);

/// Whether this rank exports, by the rule the configuration names. Built in:
///  all_ranks            yes
///  single_rank          export_rank, the last rank where that is negative; warns when there is no such rank
///  sampled              bucket(rank) / 10000 < export_sample_rate; warns when that picks nobody at a rate above 0, and
///                       then takes the last rank if sample_at_least_one
///  first_rank_per_node  the local rank is 0, from the first of LOCAL_RANK, SLURM_LOCALID, OMPI_COMM_WORLD_LOCAL_RANK,
///                       MPI_LOCALRANKID, PMI_LOCAL_RANK that is a number; 0 where none is. nemo-lens reads only the
///                       first and throws when it is no number.
/// Unknown names are UserErrors. The rule is asked even when telemetry is disabled.
bool is_exporting_rank(const StrategyInput& input);

/// MD5 of the rank in decimal, as a big-endian number modulo 10000: the same in every run (lens.md section 3.1).
/// UserError where OpenSSL refuses MD5.
int rank_bucket(std::int64_t rank);

/// The decision of `sampled` and of the rank sampler, without the fallback.
bool is_sampled_rank(std::int64_t rank, double rate);

}  // namespace pharos::lens
