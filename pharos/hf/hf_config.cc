#include "pharos/hf/hf_config.h"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/base/json.h"
#include "pharos/base/text.h"
#include "pharos/config/limits.h"

namespace pharos::hf {
namespace {

using config::ModelConfig;
using nlohmann::json;

struct FamilyRow {
  Family family;
  const char* model_type;
  const char* architecture;
};

constexpr std::array<FamilyRow, 4> kFamilies{{{Family::kGpt2, "gpt2", "GPT2LMHeadModel"},
                                              {Family::kLlama, "llama", "LlamaForCausalLM"},
                                              {Family::kQwen2, "qwen2", "Qwen2ForCausalLM"},
                                              {Family::kQwen3, "qwen3", "Qwen3ForCausalLM"}}};

/// Typed access to one object; every fault is collected, none is thrown.
class Reader {
 public:
  Reader(const json& object, std::string prefix, std::vector<std::string>& problems)
      : object_(object), prefix_(std::move(prefix)), problems_(problems) {}

  void report(const std::string& problem) { problems_.push_back(problem); }

  /// The value of `key`, or null when it is absent or null.
  const json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  std::optional<std::int64_t> count(const char* key, std::int64_t most = config::kMostVocabulary) {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    const bool is_whole =
        value->is_number_integer() && (!value->is_number_unsigned() || value->get<std::uint64_t>() < (1ull << 62));
    if (is_whole && value->get<std::int64_t>() > 0 && value->get<std::int64_t>() <= most) {
      return value->get<std::int64_t>();
    }
    report(prefix_ + key + " = " + value->dump() + " is not a whole number from 1 to " + std::to_string(most));
    return std::nullopt;
  }

  std::optional<std::int64_t> required_count(const char* key, std::int64_t most = config::kMostVocabulary) {
    if (find(key) == nullptr) report(prefix_ + key + " is missing");
    return count(key, most);
  }

  double number(const char* key, double otherwise, double lowest, bool exclusive) {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    const double parsed = value->is_number() ? value->get<double>() : std::nan("");
    if (std::isfinite(parsed) && (exclusive ? parsed > lowest : parsed >= lowest)) return parsed;
    report(prefix_ + key + " = " + value->dump() + " is not a number " + (exclusive ? "above " : "from ") +
           std::to_string(static_cast<int>(lowest)));
    return otherwise;
  }
  double positive(const char* key, double otherwise) { return number(key, otherwise, 0, true); }

  bool flag(const char* key, bool otherwise) {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    if (value->is_boolean()) return value->get<bool>();
    report(prefix_ + key + " = " + value->dump() + " is not true or false");
    return otherwise;
  }

  std::string text(const char* key, const std::string& otherwise) {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    if (value->is_string()) return value->get<std::string>();
    report(prefix_ + key + " = " + value->dump() + " is not a text");
    return otherwise;
  }

 private:
  const json& object_;
  std::string prefix_;
  std::vector<std::string>& problems_;
};

std::string supported_families() {
  std::vector<std::string> names;
  for (const FamilyRow& row : kFamilies) names.push_back(std::string(row.model_type) + " (" + row.architecture + ")");
  return base::join(names, ", ");
}

[[noreturn]] void throw_problems(const std::string& where, const std::vector<std::string>& problems) {
  throw base::UserError({.what = "'" + where + "' does not describe a model Pharos can build.",
                         .where = where,
                         .why = base::join(problems, "; "),
                         .fix = "Use a checkpoint of a supported family: " + supported_families() + "."});
}

/// model_type decides; without it, architectures.
Family find_family(const json& parsed, const std::string& where) {
  if (!parsed.is_object()) throw_problems(where, {"it is not a JSON object"});
  const json type = parsed.value("model_type", json());
  const json architectures = parsed.value("architectures", json::array());
  const bool has_architecture = architectures.is_array() && !architectures.empty() && architectures[0].is_string();
  const std::string architecture = has_architecture ? architectures[0].get<std::string>() : "";
  for (const FamilyRow& row : kFamilies) {
    if (type.is_null() ? architecture != row.architecture : type != row.model_type) continue;
    // The headless GPT2Model and the like hold the same weights; a classifier or another head does not fit.
    const std::string stem =
        std::string(row.architecture)
            .substr(0, std::string(row.architecture).find(row.family == Family::kGpt2 ? "LMHead" : "ForCausalLM"));
    if (architecture.empty() || architecture == row.architecture || architecture == stem + "Model") return row.family;
    throw_problems(where, {"its architecture is " + architecture + ", not a causal language model"});
  }
  if (type.is_null() && architecture.empty()) throw_problems(where, {"it has neither model_type nor architectures"});
  throw_problems(where,
                 {"the family is " + (type.is_null() ? architecture : type.dump()) + ", which is not supported"});
}

std::optional<config::Activation> parse_activation(const std::string& name) {
  if (name == "gelu") return config::Activation::kGelu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast") return config::Activation::kGeluTanh;
  if (name == "quick_gelu") return config::Activation::kQuickGelu;
  if (name == "relu") return config::Activation::kRelu;
  if (name == "relu2") return config::Activation::kSquaredRelu;
  if (name == "silu" || name == "swish") return config::Activation::kSilu;
  return std::nullopt;
}

void read_activation(Reader& reader, const char* key, const char* otherwise, ModelConfig& model) {
  const std::string name = reader.text(key, otherwise);
  if (const auto activation = parse_activation(name)) {
    model.activation_func = *activation;
  } else {
    reader.report(std::string(key) + " = " + name +
                  " is not supported (gelu, gelu_new, gelu_pytorch_tanh, quick_gelu, relu, relu2, silu)");
  }
}

void read_dtype(Reader& reader, ModelConfig& model) {
  const std::string name = reader.text(reader.find("dtype") != nullptr ? "dtype" : "torch_dtype", "float32");
  if (name == "bfloat16") {
    model.params_dtype = config::DType::kBFloat16;
    model.bf16 = true;
  } else if (name == "float16") {
    model.params_dtype = config::DType::kFloat16;
    model.fp16 = true;
  } else if (name != "float32") {
    reader.report("dtype = " + name + " is not supported (float32, bfloat16, float16)");
  }
}

void read_gpt2(Reader& reader, ModelConfig& model) {
  model.num_layers = reader.required_count("n_layer", config::kMostLayers);
  model.hidden_size = reader.required_count("n_embd", config::kMostWidth);
  model.num_attention_heads = reader.required_count("n_head", config::kMostHeads);
  model.seq_length =
      (reader.find("n_positions") == nullptr && reader.find("n_ctx") != nullptr ? reader.count("n_ctx")
                                                                                : reader.required_count("n_positions"))
          .value_or(model.seq_length);
  model.ffn_hidden_size = reader.count("n_inner", 8 * config::kMostWidth);
  if (!model.ffn_hidden_size && model.hidden_size) model.ffn_hidden_size = 4 * *model.hidden_size;
  model.num_query_groups = model.num_attention_heads;
  model.layernorm_epsilon = reader.positive("layer_norm_epsilon", 1e-5);
  model.normalization = config::Normalization::kLayerNorm;
  model.position_embedding_type = config::PositionEmbedding::kLearnedAbsolute;
  model.add_bias_linear = true;
  model.gated_linear_unit = false;
  read_activation(reader, "activation_function", "gelu_new", model);
  model.attention_dropout = reader.number("attn_pdrop", 0.1, 0, false);
  model.hidden_dropout = reader.number("resid_pdrop", 0.1, 0, false);
  if (const double embedding = reader.number("embd_pdrop", 0.1, 0, false); embedding != model.hidden_dropout) {
    reader.report("embd_pdrop and resid_pdrop differ; Pharos has one hidden_dropout for both");
  }
  model.share_embeddings_and_output_weights = reader.flag("tie_word_embeddings", true);
  if (!reader.flag("scale_attn_weights", true)) reader.report("scale_attn_weights = false is not supported");
  if (reader.flag("scale_attn_by_inverse_layer_idx", false))
    reader.report("scale_attn_by_inverse_layer_idx = true is not supported");
  if (reader.flag("add_cross_attention", false)) reader.report("add_cross_attention = true is not supported");
}

/// Keys of the rotary embedding, in either spelling.
void read_rotary(Reader& reader, const json& parsed, std::vector<std::string>& problems, ModelConfig& model) {
  const json empty = json::object();
  const bool is_new = reader.find("rope_parameters") != nullptr;
  const char* key = is_new ? "rope_parameters" : "rope_scaling";
  const json* given = reader.find(key);
  if (given != nullptr && !given->is_object()) reader.report(std::string(key) + " is not an object");
  const json& object = given != nullptr && given->is_object() ? *given : empty;
  for (const auto& [name, value] : object.items()) {
    if (value.is_object())
      return reader.report(std::string(key) + " differs by kind of layer ('" + name + "'), which is not supported");
  }
  Reader rope(object, std::string(key) + ".", problems);
  model.rotary_base =
      rope.find("rope_theta") != nullptr ? rope.positive("rope_theta", 1e4) : reader.positive("rope_theta", 1e4);
  model.rotary_percent = rope.find("partial_rotary_factor") != nullptr ? rope.positive("partial_rotary_factor", 1)
                                                                       : reader.positive("partial_rotary_factor", 1);
  if (model.rotary_percent > 1) reader.report("partial_rotary_factor is above 1");
  const std::string kind = rope.text(rope.find("rope_type") != nullptr ? "rope_type" : "type", "default");
  if (kind == "default") return;
  if (kind != "llama3" && kind != "linear")
    return reader.report(std::string(key) + ".rope_type = " + kind + " is not supported (default, linear, llama3)");
  if (rope.find("factor") == nullptr) reader.report(std::string(key) + ".factor is missing");
  const double factor = rope.positive("factor", 1);
  if (kind == "linear") {
    model.seq_len_interpolation_factor = factor;
    return;
  }
  model.rope_scaling = true;
  model.rope_scaling_factor = factor;
  model.rope_scaling_low_freq_factor = rope.positive("low_freq_factor", 1);
  model.rope_scaling_high_freq_factor = rope.positive("high_freq_factor", 4);
  Reader top(parsed, "", problems);
  const auto original = rope.find("original_max_position_embeddings") != nullptr
                            ? rope.count("original_max_position_embeddings")
                            : top.count("original_max_position_embeddings");
  model.rope_scaling_original_max_position_embeddings = original.value_or(8192);
  if (model.rope_scaling_high_freq_factor <= model.rope_scaling_low_freq_factor)
    reader.report(std::string(key) + ": high_freq_factor is not above low_freq_factor");
}

/// A window that is in effect; Qwen's configs carry one that is switched off.
void refuse_sliding_window(Reader& reader, Family family) {
  const bool is_on = reader.find("sliding_window") != nullptr &&
                     (family == Family::kLlama || reader.flag("use_sliding_window", false));
  bool is_listed = false;
  if (const json* types = reader.find("layer_types"); types != nullptr && types->is_array()) {
    for (const json& type : *types) is_listed = is_listed || type != "full_attention";
  }
  if (is_on || is_listed)
    reader.report(
        "sliding-window attention is active (sliding_window, layer_types), which is not supported for this family");
}

void read_biases(Reader& reader, Family family, ModelConfig& model) {
  model.add_bias_linear = false;
  // Qwen2 has biases on q, k and v alone; `attention_bias` of the others adds the output projection's.
  const bool attention = family != Family::kQwen2 && reader.flag("attention_bias", false);
  const bool mlp = family == Family::kLlama && reader.flag("mlp_bias", false);
  model.add_qkv_bias = family == Family::kQwen2 || attention;
  if (attention) model.add_attention_output_bias = true;
  if (mlp) model.add_mlp_bias = true;
}

void read_llama_like(Reader& reader, const json& parsed, Family family, std::vector<std::string>& problems,
                     ModelConfig& model) {
  model.num_layers = reader.required_count("num_hidden_layers", config::kMostLayers);
  model.hidden_size = reader.required_count("hidden_size", config::kMostWidth);
  model.num_attention_heads = reader.required_count("num_attention_heads", config::kMostHeads);
  model.ffn_hidden_size = reader.required_count("intermediate_size", 8 * config::kMostWidth);
  model.seq_length = reader.required_count("max_position_embeddings").value_or(model.seq_length);
  model.num_query_groups = reader.count("num_key_value_heads", config::kMostHeads);
  if (!model.num_query_groups) model.num_query_groups = model.num_attention_heads;
  model.kv_channels = reader.count("head_dim", config::kMostHeads);
  if (!model.kv_channels && family == Family::kQwen3)
    model.kv_channels = 128;  // its class's default; the others divide
  model.layernorm_epsilon = reader.positive("rms_norm_eps", 1e-6);
  model.normalization = config::Normalization::kRmsNorm;
  model.position_embedding_type = config::PositionEmbedding::kRope;
  model.gated_linear_unit = true;
  model.qk_layernorm = family == Family::kQwen3;
  read_activation(reader, "hidden_act", "silu", model);
  model.attention_dropout = reader.number("attention_dropout", 0, 0, false);
  model.hidden_dropout = 0;
  model.share_embeddings_and_output_weights = reader.flag("tie_word_embeddings", false);
  read_biases(reader, family, model);
  read_rotary(reader, parsed, problems, model);
  refuse_sliding_window(reader, family);
}

void check_heads(Reader& reader, ModelConfig& model) {
  if (!model.num_attention_heads || !model.hidden_size || !model.num_query_groups) return;
  if (!model.kv_channels) {
    if (*model.hidden_size % *model.num_attention_heads != 0)
      return reader.report("hidden_size " + std::to_string(*model.hidden_size) + " is not divisible by " +
                           std::to_string(*model.num_attention_heads) + " heads");
    model.kv_channels = *model.hidden_size / *model.num_attention_heads;
  }
  if (*model.num_attention_heads % *model.num_query_groups != 0) {
    reader.report("num_attention_heads " + std::to_string(*model.num_attention_heads) +
                  " is not divisible by num_key_value_heads " + std::to_string(*model.num_query_groups));
  }
  if (model.position_embedding_type == config::PositionEmbedding::kRope && *model.kv_channels % 2 != 0)
    reader.report("head_dim " + std::to_string(*model.kv_channels) + " is odd; rotary positions need pairs");
}

}  // namespace

const char* family_name(Family family) {
  for (const FamilyRow& row : kFamilies) {
    if (row.family == family) return row.model_type;
  }
  throw base::InternalError("family without a row");
}

HfModel parse_hf_config(const json& parsed, const std::string& where) {
  HfModel result{find_family(parsed, where), {}};
  ModelConfig& model = result.model;
  std::vector<std::string> problems;
  Reader reader(parsed, "", problems);
  model.vocab_size = reader.required_count("vocab_size");
  model.init_method_std = reader.positive("initializer_range", 0.02);
  if (reader.find("quantization_config") != nullptr)
    reader.report("quantization_config is given: quantised weights are not supported");
  read_dtype(reader, model);
  if (result.family == Family::kGpt2) {
    read_gpt2(reader, model);
  } else {
    read_llama_like(reader, parsed, result.family, problems, model);
  }
  check_heads(reader, model);
  if (!problems.empty()) throw_problems(where, problems);
  return result;
}

HfModel read_hf_config(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw base::UserError({.what = "'" + folder.string() + "' is not a folder.",
                           .where = folder.string(),
                           .fix = "Give a local Hugging Face folder with config.json and *.safetensors."});
  }
  const std::filesystem::path path = folder / "config.json";
  return parse_hf_config(base::read_json_file(path), path.string());
}

}  // namespace pharos::hf
