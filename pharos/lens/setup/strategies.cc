#include "pharos/lens/setup/strategies.h"

#include <openssl/evp.h>

#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/lens/variables/scalar.h"

namespace pharos::lens {
namespace {

constexpr int kNumBuckets = 10000;

bool is_single_rank(const StrategyInput& input) {
  const std::int64_t chosen = input.config.export_rank;
  if (chosen < 0) return input.rank == input.world_size - 1;
  if (chosen >= input.world_size) {
    input.warnings.push_back("No rank exports telemetry: export_rank is " + std::to_string(chosen) +
                             ", but ranks go from 0 to " + std::to_string(input.world_size - 1) + ".");
  }
  return input.rank == chosen;
}

bool picks_anybody(int world_size, double rate) {
  for (int rank = 0; rank < world_size; ++rank) {
    if (is_sampled_rank(rank, rate)) return true;
  }
  return false;
}

bool is_in_sample(const StrategyInput& input) {
  const double rate = input.config.export_sample_rate;
  if (is_sampled_rank(input.rank, rate)) return true;
  if (rate <= 0.0 || picks_anybody(input.world_size, rate)) return false;
  const bool falls_back = input.config.sample_at_least_one;
  input.warnings.push_back("Strategy 'sampled' at rate " + std::to_string(rate) + " picks none of " +
                           std::to_string(input.world_size) + " ranks; " +
                           (falls_back ? "the last one exports." : "set sample_at_least_one to have the last one."));
  return falls_back && input.rank == input.world_size - 1;
}

bool is_first_on_node(const StrategyInput& input) {
  for (const char* name :
       {"LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK"}) {
    const auto text = input.environment.get(name);
    if (!text) continue;
    if (const auto local_rank = parse_integer(*text)) return *local_rank == 0;
    input.warnings.push_back(std::string(name) + " = '" + shown(*text) +
                             "' is not a number and is not taken for a rank.");
  }
  return true;
}

const std::map<std::string, ExportStrategy>& built_in() {
  static const std::map<std::string, ExportStrategy> strategies = {
      {"all_ranks", [](const StrategyInput&) { return true; }},
      {"single_rank", &is_single_rank},
      {"sampled", &is_in_sample},
      {"first_rank_per_node", &is_first_on_node},
  };
  return strategies;
}

struct Registry {
  std::mutex mutex;
  std::map<std::string, ExportStrategy> strategies = built_in();
};

Registry& registry() {
  static auto* const instance = new Registry;
  return *instance;
}

std::optional<ExportStrategy> find_strategy(const std::string& name) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().strategies.find(name);
  if (found == registry().strategies.end()) return std::nullopt;
  return found->second;
}

[[noreturn]] void fail_unknown(const std::string& name, const std::string& source) {
  const std::vector<std::string> known = registered_export_strategies();
  const std::vector<std::string> nearest = base::nearest_names(lower_case(name), known, 1);
  throw base::UserError({.what = "Unknown export_strategy '" + shown(name) + "'.",
                         .where = source,
                         .fix = (nearest.empty() ? "" : "Did you mean " + nearest.front() + "? ") + "Valid are " +
                                base::join(known, ", ") + "."});
}

}  // namespace

void register_export_strategy(const std::string& name, ExportStrategy strategy, bool allow_override) {
  if (name.empty()) throw base::InternalError("the name of an export strategy must be non-empty");
  const std::lock_guard lock(registry().mutex);
  auto& strategies = registry().strategies;
  if (!allow_override && strategies.contains(name)) {
    throw base::InternalError("export strategy '" + name + "' is already registered");
  }
  strategies[name] = std::move(strategy);
}

void unregister_export_strategy(const std::string& name) {
  if (built_in().contains(name)) throw base::InternalError("export strategy '" + name + "' is built-in");
  const std::lock_guard lock(registry().mutex);
  if (registry().strategies.erase(name) == 0) {
    throw base::InternalError("export strategy '" + name + "' is not registered");
  }
}

std::vector<std::string> registered_export_strategies() {
  const std::lock_guard lock(registry().mutex);
  std::vector<std::string> names;
  for (const auto& [name, strategy] : registry().strategies) names.push_back(name);
  return names;
}

void check_strategy_name(const std::string& name, const std::string& source) {
  if (!find_strategy(name)) fail_unknown(name, source);
}

bool is_exporting_rank(const StrategyInput& input) {
  const auto strategy = find_strategy(input.config.export_strategy);
  if (!strategy) fail_unknown(input.config.export_strategy, "");
  return (*strategy)(input);
}

int rank_bucket(std::int64_t rank) {
  const std::string text = std::to_string(rank);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (EVP_Digest(text.data(), text.size(), digest, &size, EVP_md5(), nullptr) != 1) {
    throw base::UserError({.what = "Ranks cannot be sampled: OpenSSL refuses MD5.",
                           .why = "the choice of ranks is an MD5 of the rank; FIPS mode forbids MD5",
                           .fix = "Use export_strategy single_rank, all_ranks or first_rank_per_node."});
  }
  unsigned int bucket = 0;
  for (unsigned int i = 0; i < size; ++i) bucket = (bucket * 256 + digest[i]) % kNumBuckets;
  return static_cast<int>(bucket);
}

bool is_sampled_rank(std::int64_t rank, double rate) {
  if (rate >= 1.0) return true;
  return rate > 0.0 && rank_bucket(rank) / static_cast<double>(kNumBuckets) < rate;
}

}  // namespace pharos::lens
