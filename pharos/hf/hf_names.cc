#include "pharos/hf/hf_names.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "pharos/base/error.h"

namespace pharos::hf {
namespace {

/// Llama's names, with every bias any of its relatives has; a model's own pieces decide which lines are used.
std::vector<NameRule> llama_rules() {
  return {
      {"embedding.word_embeddings.weight", "embed_tokens.weight"},
      {"decoder.layers.{}.input_layernorm.weight", "layers.{}.input_layernorm.weight"},
      {"decoder.layers.{}.self_attention.q.weight", "layers.{}.self_attn.q_proj.weight"},
      {"decoder.layers.{}.self_attention.k.weight", "layers.{}.self_attn.k_proj.weight"},
      {"decoder.layers.{}.self_attention.v.weight", "layers.{}.self_attn.v_proj.weight"},
      {"decoder.layers.{}.self_attention.q.bias", "layers.{}.self_attn.q_proj.bias"},
      {"decoder.layers.{}.self_attention.k.bias", "layers.{}.self_attn.k_proj.bias"},
      {"decoder.layers.{}.self_attention.v.bias", "layers.{}.self_attn.v_proj.bias"},
      {"decoder.layers.{}.self_attention.linear_proj.weight", "layers.{}.self_attn.o_proj.weight"},
      {"decoder.layers.{}.self_attention.linear_proj.bias", "layers.{}.self_attn.o_proj.bias"},
      {"decoder.layers.{}.pre_mlp_layernorm.weight", "layers.{}.post_attention_layernorm.weight"},
      {"decoder.layers.{}.mlp.gate.weight", "layers.{}.mlp.gate_proj.weight"},
      {"decoder.layers.{}.mlp.up.weight", "layers.{}.mlp.up_proj.weight"},
      {"decoder.layers.{}.mlp.linear_fc2.weight", "layers.{}.mlp.down_proj.weight"},
      {"decoder.layers.{}.mlp.gate.bias", "layers.{}.mlp.gate_proj.bias"},
      {"decoder.layers.{}.mlp.up.bias", "layers.{}.mlp.up_proj.bias"},
      {"decoder.layers.{}.mlp.linear_fc2.bias", "layers.{}.mlp.down_proj.bias"},
      {"decoder.final_layernorm.weight", "norm.weight"},
      {.piece = "output_layer.weight", .tensor = "lm_head.weight", .is_head = true},
  };
}

std::vector<NameRule> qwen3_rules() {
  std::vector<NameRule> rules = llama_rules();
  rules.push_back({"decoder.layers.{}.self_attention.q_layernorm.weight", "layers.{}.self_attn.q_norm.weight"});
  rules.push_back({"decoder.layers.{}.self_attention.k_layernorm.weight", "layers.{}.self_attn.k_norm.weight"});
  return rules;
}

std::vector<NameRule> gpt2_rules() {
  return {
      {"embedding.word_embeddings.weight", "wte.weight"},
      {"embedding.position_embeddings.weight", "wpe.weight"},
      {"decoder.layers.{}.input_layernorm.weight", "h.{}.ln_1.weight"},
      {"decoder.layers.{}.input_layernorm.bias", "h.{}.ln_1.bias"},
      {"decoder.layers.{}.self_attention.q.weight", "h.{}.attn.c_attn.weight", true, 0, 3},
      {"decoder.layers.{}.self_attention.k.weight", "h.{}.attn.c_attn.weight", true, 1, 3},
      {"decoder.layers.{}.self_attention.v.weight", "h.{}.attn.c_attn.weight", true, 2, 3},
      {"decoder.layers.{}.self_attention.q.bias", "h.{}.attn.c_attn.bias", false, 0, 3},
      {"decoder.layers.{}.self_attention.k.bias", "h.{}.attn.c_attn.bias", false, 1, 3},
      {"decoder.layers.{}.self_attention.v.bias", "h.{}.attn.c_attn.bias", false, 2, 3},
      {"decoder.layers.{}.self_attention.linear_proj.weight", "h.{}.attn.c_proj.weight", true},
      {"decoder.layers.{}.self_attention.linear_proj.bias", "h.{}.attn.c_proj.bias"},
      {"decoder.layers.{}.pre_mlp_layernorm.weight", "h.{}.ln_2.weight"},
      {"decoder.layers.{}.pre_mlp_layernorm.bias", "h.{}.ln_2.bias"},
      {"decoder.layers.{}.mlp.linear_fc1.weight", "h.{}.mlp.c_fc.weight", true},
      {"decoder.layers.{}.mlp.linear_fc1.bias", "h.{}.mlp.c_fc.bias"},
      {"decoder.layers.{}.mlp.linear_fc2.weight", "h.{}.mlp.c_proj.weight", true},
      {"decoder.layers.{}.mlp.linear_fc2.bias", "h.{}.mlp.c_proj.bias"},
      {"decoder.final_layernorm.weight", "ln_f.weight"},
      {"decoder.final_layernorm.bias", "ln_f.bias"},
      {.piece = "output_layer.weight", .tensor = "lm_head.weight", .is_head = true},
  };
}

/// Matches `text` against `pattern`; gives the layer number, or -1 for a pattern without one.
std::optional<std::int64_t> match(std::string_view pattern, std::string_view text) {
  const std::size_t hole = pattern.find("{}");
  if (hole == std::string_view::npos) return pattern == text ? std::optional<std::int64_t>(-1) : std::nullopt;
  const std::string_view before = pattern.substr(0, hole), after = pattern.substr(hole + 2);
  if (text.size() <= before.size() + after.size() || !text.starts_with(before) || !text.ends_with(after))
    return std::nullopt;
  const std::string_view digits = text.substr(before.size(), text.size() - before.size() - after.size());
  std::int64_t layer = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), layer);
  const bool is_plain = digits.size() == 1 || digits.front() != '0';
  if (error != std::errc() || end != digits.data() + digits.size() || layer < 0 || !is_plain) return std::nullopt;
  return layer;
}

std::string fill(std::string pattern, std::int64_t layer) {
  if (const std::size_t hole = pattern.find("{}"); hole != std::string::npos)
    pattern.replace(hole, 2, std::to_string(layer));
  return pattern;
}

/// `tensor` without the prefix that every name but the head's has, or nullopt.
std::optional<std::string_view> without_prefix(const NameTable& table, std::string_view tensor, bool with_prefix) {
  if (!with_prefix) return tensor;
  if (!tensor.starts_with(table.prefix)) return std::nullopt;
  return tensor.substr(std::string_view(table.prefix).size());
}

}  // namespace

const NameTable& name_table(Family family) {
  static const std::vector<const char*> inverse_frequencies = {"layers.{}.self_attn.rotary_emb.inv_freq",
                                                               "rotary_emb.inv_freq"};
  static const NameTable tables[] = {
      {Family::kGpt2, "transformer.", gpt2_rules(), {"h.{}.attn.bias", "h.{}.attn.masked_bias"}},
      {Family::kLlama, "model.", llama_rules(), inverse_frequencies},
      {Family::kQwen2, "model.", llama_rules(), inverse_frequencies},
      {Family::kQwen3, "model.", qwen3_rules(), inverse_frequencies},
  };
  for (const NameTable& table : tables) {
    if (table.family == family) return table;
  }
  throw base::InternalError("family without a table of names");
}

std::vector<std::int64_t> Location::tensor_shape(const std::vector<std::int64_t>& shape) const {
  std::vector<std::int64_t> stored = shape;
  stored[0] *= num_parts;
  if (transposed) std::reverse(stored.begin(), stored.end());
  return stored;
}

tensor::Slice Location::in_tensor(const tensor::Slice& slice, const std::vector<std::int64_t>& shape) const {
  tensor::Slice stored = slice;
  stored.offset[0] += part * shape[0];
  if (transposed) {
    std::reverse(stored.offset.begin(), stored.offset.end());
    std::reverse(stored.shape.begin(), stored.shape.end());
  }
  return stored;
}

std::optional<Location> locate(const NameTable& table, const std::string& piece, bool with_prefix) {
  for (const NameRule& rule : table.rules) {
    const auto layer = match(rule.piece, piece);
    if (!layer) continue;
    const std::string prefix = with_prefix && !rule.is_head ? table.prefix : "";
    return Location{prefix + fill(rule.tensor, *layer), rule.transposed, rule.part, rule.num_parts};
  }
  return std::nullopt;
}

bool is_known_tensor(const NameTable& table, const std::string& tensor, bool with_prefix, std::int64_t num_layers) {
  const auto name = without_prefix(table, tensor, with_prefix);
  return std::any_of(table.rules.begin(), table.rules.end(), [&](const NameRule& rule) {
    if (rule.is_head) return tensor == rule.tensor;
    const auto layer = name ? match(rule.tensor, *name) : std::nullopt;
    return layer && *layer < num_layers;
  });
}

bool is_ignorable(const NameTable& table, const std::string& tensor, bool with_prefix) {
  const auto name = without_prefix(table, tensor, with_prefix);
  return name && std::any_of(table.ignorable.begin(), table.ignorable.end(),
                             [&](const char* pattern) { return match(pattern, *name).has_value(); });
}

}  // namespace pharos::hf
