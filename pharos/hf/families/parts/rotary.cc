// The rotary embedding in config.json, in both spellings (bridge-config.md 1.4, 4.1).
#include <cmath>

#include "pharos/hf/families/parts/rows.h"

namespace pharos::hf {
namespace {

using config::MlaRopeType;
using config::ModelConfig;
using config::PositionEmbedding;
using nlohmann::json;

/// Far above any that is used.
constexpr double kMostTheta = 1e15, kMostFactor = 1e6;

/// m(factor, scale) of YaRN.
double yarn_scale(double factor, double scale) { return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1; }

/// What transformers multiplies cosines and sines with when attention_factor is absent: mscale acts only together with
/// mscale_all_dim, and zero is as good as absent.
double inferred_factor(double factor, double mscale, double mscale_all_dim) {
  if (mscale == 0 || mscale_all_dim == 0) return yarn_scale(factor, 1);
  return yarn_scale(factor, mscale) / yarn_scale(factor, mscale_all_dim);
}

/// rope_parameters of rope_type yarn; 0: absent.
struct Yarn {
  double factor = 1;
  std::int64_t original = 0;
  double beta_fast = 32, beta_slow = 1;
  double mscale = 0, mscale_all_dim = 0;
  std::optional<double> attention_factor;
  bool truncate = true;
};

/// The length before scaling; transformers looks beside rope_parameters first.
std::int64_t original_positions(Reader& top, Reader& rope) {
  static constexpr const char* kKey = "original_max_position_embeddings";
  if (const auto beside = top.count(kKey)) return *beside;
  if (const auto inside = rope.count(kKey)) return *inside;
  return top.count("max_position_embeddings").value_or(1);
}

double or_default(double value, double otherwise) { return value == 0 ? otherwise : value; }

Yarn read_yarn(Reader& top, Reader& rope) {
  Yarn yarn;
  yarn.factor = rope.between("factor", 1, 1, kMostFactor);
  yarn.original = original_positions(top, rope);
  yarn.beta_fast = or_default(rope.not_negative("beta_fast", 32), 32);
  yarn.beta_slow = or_default(rope.not_negative("beta_slow", 1), 1);
  yarn.mscale = rope.not_negative("mscale", 0);
  yarn.mscale_all_dim = rope.not_negative("mscale_all_dim", 0);
  if (rope.find("attention_factor") != nullptr) yarn.attention_factor = rope.positive("attention_factor", 1);
  yarn.truncate = rope.flag("truncate", true);
  return yarn;
}

json write_yarn(const Yarn& yarn) {
  json written = {{"rope_type", "yarn"},
                  {"factor", yarn.factor},
                  {"original_max_position_embeddings", yarn.original},
                  {"beta_fast", yarn.beta_fast},
                  {"beta_slow", yarn.beta_slow}};
  if (yarn.mscale != 0) written["mscale"] = yarn.mscale;
  if (yarn.mscale_all_dim != 0) written["mscale_all_dim"] = yarn.mscale_all_dim;
  if (yarn.attention_factor) written["attention_factor"] = *yarn.attention_factor;
  if (!yarn.truncate) written["truncate"] = false;
  return written;
}

void read_latent_yarn(Reader& top, Reader& rope, ModelConfig& model) {
  const Yarn yarn = read_yarn(top, rope);
  if (!yarn.truncate) rope.report("rope_parameters.truncate = false is not supported with multi-latent attention");
  model.rope_type = MlaRopeType::kYarn;
  model.rotary_scaling_factor = yarn.factor;
  model.original_max_position_embeddings = yarn.original;
  model.beta_fast = yarn.beta_fast;
  model.beta_slow = yarn.beta_slow;
  model.mscale_all_dim = yarn.mscale_all_dim;  // also in the scale of the scores, with or without mscale
  model.mscale = yarn.mscale_all_dim != 0 && yarn.mscale != 0 ? yarn.mscale : 1;
  model.rope_attention_factor = yarn.attention_factor;
  if (!yarn.attention_factor && yarn.mscale_all_dim != 0 && yarn.mscale == 0)
    model.rope_attention_factor = inferred_factor(yarn.factor, 0, 0);
}

json write_latent(const ModelConfig& model) {
  if (model.rope_type == MlaRopeType::kRope) return {{"rope_type", "default"}};
  const double factor = model.rotary_scaling_factor;
  Yarn yarn{factor,
            model.original_max_position_embeddings,
            model.beta_fast,
            model.beta_slow,
            model.mscale,
            model.mscale_all_dim,
            model.rope_attention_factor};
  const double wanted = yarn_scale(factor, model.mscale) / yarn_scale(factor, model.mscale_all_dim);
  if (!yarn.attention_factor && wanted != inferred_factor(factor, model.mscale, model.mscale_all_dim))
    yarn.attention_factor = wanted;
  return write_yarn(yarn);
}

void read_plain_yarn(Reader& top, Reader& rope, ModelConfig& model) {
  const Yarn yarn = read_yarn(top, rope);
  model.position_embedding_type = PositionEmbedding::kYarn;
  model.yarn_rotary_scaling_factor = yarn.factor;
  model.yarn_original_max_position_embeddings = yarn.original;
  model.yarn_beta_fast = yarn.beta_fast;
  model.yarn_beta_slow = yarn.beta_slow;
  model.yarn_correction_range_round_to_int = yarn.truncate;
  model.rope_attention_factor = yarn.attention_factor;
  if (yarn.mscale == 0 || yarn.mscale_all_dim == 0) return;
  model.yarn_mscale = yarn.mscale;
  model.yarn_mscale_all_dim = yarn.mscale_all_dim;
}

void read_llama3(Reader& top, Reader& rope, const std::string& key, ModelConfig& model) {
  model.rope_scaling = true;
  model.rope_scaling_factor = rope.between("factor", 1, 1, kMostFactor);
  model.rope_scaling_low_freq_factor = rope.positive("low_freq_factor", 1);
  model.rope_scaling_high_freq_factor = rope.positive("high_freq_factor", 4);
  model.rope_scaling_original_max_position_embeddings = original_positions(top, rope);
  if (model.rope_scaling_high_freq_factor <= model.rope_scaling_low_freq_factor)
    rope.report(key + ": high_freq_factor is not above low_freq_factor");
}

json write_plain(const ModelConfig& model) {
  if (model.position_embedding_type == PositionEmbedding::kYarn) {
    return write_yarn({model.yarn_rotary_scaling_factor.value_or(1),
                       model.yarn_original_max_position_embeddings.value_or(4096), model.yarn_beta_fast.value_or(32),
                       model.yarn_beta_slow.value_or(1), model.yarn_mscale.value_or(0),
                       model.yarn_mscale_all_dim.value_or(0), model.rope_attention_factor,
                       model.yarn_correction_range_round_to_int.value_or(true)});
  }
  if (model.rope_scaling) {
    return {{"rope_type", "llama3"},
            {"factor", model.rope_scaling_factor},
            {"low_freq_factor", model.rope_scaling_low_freq_factor},
            {"high_freq_factor", model.rope_scaling_high_freq_factor},
            {"original_max_position_embeddings", model.rope_scaling_original_max_position_embeddings}};
  }
  if (model.seq_len_interpolation_factor)
    return {{"rope_type", "linear"}, {"factor", *model.seq_len_interpolation_factor}};
  return {{"rope_type", "default"}};
}

void read_scaling(Reader& top, Reader& rope, const std::string& key, ModelConfig& model) {
  const std::string kind = rope.text("rope_type|type", "default");
  if (kind == "default") return;
  const bool is_known = kind == "yarn" || (!model.multi_latent_attention && (kind == "llama3" || kind == "linear"));
  if (!is_known) {
    return rope.report(key + ".rope_type = " + kind + " is not supported (default, " +
                       (model.multi_latent_attention ? "yarn)" : "linear, llama3, yarn)"));
  }
  if (rope.find("factor") == nullptr) rope.report(key + ".factor is missing");
  if (kind == "linear") {
    model.seq_len_interpolation_factor = rope.between("factor", 1, 1, kMostFactor);
  } else if (kind == "llama3") {
    read_llama3(top, rope, key, model);
  } else if (model.multi_latent_attention) {
    read_latent_yarn(top, rope, model);
  } else {
    read_plain_yarn(top, rope, model);
  }
}

void read_rotary(Reader& top, const Rotary& defaults, ModelConfig& model) {
  // As in transformers, the older name wins, and what stands under the other one means nothing then.
  const json* scaling = top.find("rope_scaling");
  const bool is_empty = scaling == nullptr || (scaling->is_object() && scaling->empty());
  const std::string key = is_empty ? "rope_parameters" : "rope_scaling";
  const json* given = top.find(key);
  if (given != nullptr && !given->is_object()) return top.report(key + " is not an object");
  const json object = given != nullptr ? *given : json::parse(defaults.absent);
  for (const auto& [name, value] : object.items()) {
    if (value.is_object())
      return top.report(key + " differs by kind of layer ('" + name + "'), which is not supported");
  }
  Reader rope(object, key + ".", top.problems());
  model.position_embedding_type = PositionEmbedding::kRope;
  model.rope_type = MlaRopeType::kRope;
  model.rotary_base = (rope.has("rope_theta") ? rope : top).between("rope_theta", defaults.theta, 1, kMostTheta);
  const double part = (rope.has("partial_rotary_factor") ? rope : top).positive("partial_rotary_factor", 1);
  if (part > 1) top.report("partial_rotary_factor is above 1");
  if (part < 1 && !defaults.may_be_partial) top.report("partial_rotary_factor below 1 is not supported");
  model.rotary_percent = part;
  read_scaling(top, rope, key, model);
}

}  // namespace

Row rotary(Rotary defaults) {
  return {[=](Reader& reader, ModelConfig& model) { read_rotary(reader, defaults, model); },
          [](const ModelConfig& model, json& written) {
            json& rope = written["rope_parameters"];
            rope = model.multi_latent_attention ? write_latent(model) : write_plain(model);
            rope["rope_theta"] = model.rotary_base;
            if (model.rotary_percent != 1) rope["partial_rotary_factor"] = model.rotary_percent;
          }};
}

}  // namespace pharos::hf
