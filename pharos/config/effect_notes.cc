// What is told of fields that were set and do not act.
#include <algorithm>
#include <map>

#include "pharos/base/text.h"
#include "pharos/config/derived.h"
#include "pharos/config/lifecycle.h"
#include "pharos/config/schema/schema.h"

namespace pharos::config {
namespace {

/// Joins names of fields that share a note, in schema order.
void add_note(std::vector<std::string>& notes, const std::vector<std::string>& fields, const std::string& rest) {
  if (!fields.empty()) notes.push_back(base::join(fields, ", ") + rest);
}

bool is_on(const ResolvedConfig& resolved, const std::string& field) {
  const Value value = schema().find(field)->read(resolved.config);
  return !value.is_null() && !(value.kind == Value::Kind::kBool && !value.boolean);
}

/// A reason that switches several fields off, other than another field being null or false (Field::active_with).
struct Silencer {
  bool holds;
  const char* reason;
  std::vector<std::string> fields;
};

std::vector<Silencer> silencers(const ModelConfig& model) {
  const std::vector<std::string> yarn = {"model.yarn_rotary_scaling_factor",
                                         "model.yarn_original_max_position_embeddings",
                                         "model.yarn_beta_fast",
                                         "model.yarn_beta_slow",
                                         "model.yarn_mscale",
                                         "model.yarn_mscale_all_dim",
                                         "model.yarn_correction_range_round_to_int"};
  std::vector<std::string> of_heads = {"model.kv_channels", "model.rotary_percent", "model.rotary_interleaved"};
  of_heads.insert(of_heads.end(), yarn.begin(), yarn.end());
  const auto& balancing = model.moe_router_load_balancing_type;
  const bool balances =
      std::any_of(balancing.begin(), balancing.end(), [](const std::string& type) { return type != "none"; });
  const bool latent = model.multi_latent_attention;
  return {
      {latent, "with model.multi_latent_attention", std::move(of_heads)},
      {!latent && model.position_embedding_type != PositionEmbedding::kYarn,
       "without model.position_embedding_type = yarn", yarn},
      {latent && model.rope_type != MlaRopeType::kYarn,
       "without model.rope_type = yarn",
       {"model.rotary_scaling_factor", "model.original_max_position_embeddings", "model.beta_fast", "model.beta_slow",
        "model.mscale", "model.mscale_all_dim"}},
      {model.num_moe_experts && model.moe_token_dispatcher_type != TokenDispatcher::kFlex,
       "without model.moe_token_dispatcher_type = flex",
       {"model.moe_flex_dispatcher_backend"}},
      {model.num_moe_experts && !balances,
       "with model.moe_router_load_balancing_type = none",
       {"model.moe_aux_loss_coeff"}},
  };
}

/// Why profiling.use_nsys_profiler will capture nothing, or less than was asked for.
std::vector<std::string> window_notes(const ResolvedConfig& resolved, std::int64_t world_size) {
  const ProfilingConfig& profiling = resolved.config.profiling;
  if (!profiling.use_nsys_profiler) return {};
  std::vector<std::string> notes;
  if (profiling.profile_step_start == profiling.profile_step_end) {
    notes.push_back("profiling.profile_step_start and profile_step_end are both " +
                    std::to_string(profiling.profile_step_start) + ": the window is empty, nothing is captured.");
  }
  const std::int64_t iterations =
      total_train_iterations(resolved.config, data_parallel_size(resolved.config.model, world_size));
  if (profiling.profile_step_start < profiling.profile_step_end && profiling.profile_step_start >= iterations) {
    notes.push_back("profiling.profile_step_start = " + std::to_string(profiling.profile_step_start) +
                    ": the run ends after " + std::to_string(iterations) +
                    " steps, before the window begins; nothing is captured.");
  }
  for (const std::int64_t rank : profiling.profile_ranks) {
    if (rank >= 0 && rank < world_size) continue;
    notes.push_back("profiling.profile_ranks names rank " + std::to_string(rank) + "; the job has ranks 0 to " +
                    std::to_string(world_size - 1) + ".");
  }
  return notes;
}

}  // namespace

std::vector<std::string> effect_notes(const ResolvedConfig& resolved, std::int64_t world_size) {
  std::vector<std::string> notes, stored, hints, one_rank;
  std::map<std::string, std::vector<std::string>> switched_off;
  const auto is_set = [&](const Field& field) {
    return resolved.is_explicit(field.name) && !(field.read(resolved.config) == field.default_value);
  };
  for (const Field& field : schema().fields()) {
    if (!is_set(field)) continue;
    if (field.need == Need::kStored) stored.push_back(field.name);
    if (field.need == Need::kHint) hints.push_back(field.name);
    if (field.need == Need::kOneRank && world_size == 1) one_rank.push_back(field.name);
    if (!field.active_with.empty() && !is_on(resolved, field.active_with))
      switched_off["without " + field.active_with].push_back(field.name);
  }
  for (const Silencer& silencer : silencers(resolved.config.model)) {
    if (!silencer.holds) continue;
    for (const std::string& name : silencer.fields) {
      if (is_set(*schema().find(name))) switched_off[silencer.reason].push_back(name);
    }
  }
  add_note(notes, stored, ": stored in run.yaml, without effect in Pharos.");
  add_note(notes, hints, ": accepted; Pharos decides this itself.");
  add_note(notes, one_rank, ": no effect on one rank.");
  for (const auto& [reason, fields] : switched_off) add_note(notes, fields, ": no effect " + reason + ".");
  for (std::string& note : window_notes(resolved, world_size)) notes.push_back(std::move(note));
  return notes;
}

}  // namespace pharos::config
