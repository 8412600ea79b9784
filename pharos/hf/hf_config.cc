#include "pharos/hf/hf_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/base/json.h"
#include "pharos/base/text.h"
#include "pharos/hf/architecture.h"
#include "pharos/hf/families/family.h"
#include "pharos/hf/families/parts/rows.h"

namespace pharos::hf {
namespace {

using config::DType;
using config::ModelConfig;
using nlohmann::json;

std::string supported_families() {
  std::vector<std::string> names;
  for (const Family* family : families())
    names.push_back(std::string(family->model_type) + " (" + family->architectures.front() + ")");
  return base::join(names, ", ");
}

[[noreturn]] void throw_problems(const std::string& where, const std::vector<std::string>& problems) {
  const bool is_quantised = std::any_of(problems.begin(), problems.end(), [](const std::string& problem) {
    return problem.starts_with("quantization_config");
  });
  throw base::UserError({.what = "'" + where + "' does not describe a model Pharos can build.",
                         .where = where,
                         .why = base::join(problems, "; "),
                         .fix = is_quantised
                                    ? "Take a copy of the model with its weights in bf16."
                                    : "Use a checkpoint of a supported family: " + supported_families() + "."});
}

bool has_type(const Family& family, const std::string& type) {
  return type == family.model_type ||
         std::find(family.other_types.begin(), family.other_types.end(), type) != family.other_types.end();
}

bool has_architecture(const Family& family, const std::string& architecture) {
  return std::find(family.architectures.begin(), family.architectures.end(), architecture) !=
         family.architectures.end();
}

/// model_type decides; without it, architectures. A classifier or another head does not fit.
const Family& family_of(const json& parsed, const std::string& where) {
  if (!parsed.is_object()) throw_problems(where, {"it is not a JSON object"});
  const json type = parsed.value("model_type", json());
  const json architectures = parsed.value("architectures", json::array());
  const bool is_list = architectures.is_array() && std::all_of(architectures.begin(), architectures.end(),
                                                               [](const json& one) { return one.is_string(); });
  if (!is_list && !architectures.is_null())
    throw_problems(where, {"architectures = " + architectures.dump() + " is not a list of names"});
  const bool is_named = is_list && !architectures.empty();
  const std::string architecture = is_named ? architectures[0].get<std::string>() : "";
  if (type.is_null() && architecture.empty()) throw_problems(where, {"it has neither model_type nor architectures"});
  for (const Family* family : families()) {
    const bool is_known = has_architecture(*family, architecture);
    if (type.is_null() ? !is_known : !type.is_string() || !has_type(*family, type.get<std::string>())) continue;
    if (architecture.empty() || is_known) return *family;
    throw_problems(where, {"its architecture is " + architecture + ", not a causal language model"});
  }
  throw_problems(where,
                 {"the family is " + (type.is_null() ? architecture : type.dump()) + ", which is not supported"});
}

Row weights_type() {
  return {[](Reader& reader, ModelConfig& model) {
            std::string name = reader.text("dtype|torch_dtype", "float32");
            if (name.starts_with("torch.")) name.erase(0, std::string("torch.").size());
            if (name == "bfloat16") {
              model.params_dtype = DType::kBFloat16;
              model.bf16 = true;
            } else if (name == "float16") {
              model.params_dtype = DType::kFloat16;
              model.fp16 = true;
            } else if (name != "float32") {
              reader.report("dtype = " + name + " is not supported (float32, bfloat16, float16)");
            }
          },
          [](const ModelConfig& model, json& written) {
            const bool is_half = model.params_dtype == DType::kFloat16, is_full = model.params_dtype == DType::kFloat32;
            written["dtype"] = is_full ? "float32" : is_half ? "float16" : "bfloat16";
          }};
}

Row no_quantization() {
  return {[](Reader& reader, ModelConfig&) {
    if (reader.find("quantization_config") != nullptr)
      reader.report("quantization_config is given: quantised weights are not supported");
  }};
}

/// Those that every family has.
const std::vector<Row>& common_rows() {
  static const std::vector<Row> rows = {count("vocab_size", &ModelConfig::vocab_size, config::kMostVocabulary),
                                        positive("initializer_range", &ModelConfig::init_method_std, 0.02),
                                        weights_type(), no_quantization()};
  return rows;
}

void check_heads(Reader& reader, ModelConfig& model) {
  if (!model.num_attention_heads || !model.hidden_size) return;
  if (!model.num_query_groups) model.num_query_groups = model.num_attention_heads;
  const auto number = [](std::int64_t value) { return std::to_string(value); };
  if (!model.kv_channels && !model.multi_latent_attention) {
    if (*model.hidden_size % *model.num_attention_heads != 0)
      return reader.report("hidden_size " + number(*model.hidden_size) + " is not divisible by " +
                           number(*model.num_attention_heads) + " heads");
    model.kv_channels = *model.hidden_size / *model.num_attention_heads;
  }
  if (*model.num_attention_heads % *model.num_query_groups != 0) {
    reader.report("num_attention_heads " + number(*model.num_attention_heads) +
                  " is not divisible by num_key_value_heads " + number(*model.num_query_groups));
  }
  if (model.position_embedding_type != config::PositionEmbedding::kLearnedAbsolute &&
      model.kv_channels.value_or(0) % 2 != 0)
    reader.report("head_dim " + number(*model.kv_channels) + " is odd; rotary positions need pairs");
}

void check_experts(Reader& reader, const ModelConfig& model) {
  if (!model.num_moe_experts) return;
  const auto number = [](std::int64_t value) { return std::to_string(value); };
  const std::int64_t experts = *model.num_moe_experts, chosen = model.moe_router_topk;
  if (chosen > experts)
    reader.report("num_experts_per_tok " + number(chosen) + " is above the number of experts, " + number(experts));
  if (!model.moe_router_num_groups || !model.moe_router_group_topk) return;
  const std::int64_t groups = *model.moe_router_num_groups, group_topk = *model.moe_router_group_topk;
  if (experts % groups != 0) {
    reader.report(number(experts) + " experts are not divisible by n_group " + number(groups));
  } else if (group_topk > groups) {
    reader.report("topk_group " + number(group_topk) + " is above n_group " + number(groups));
  } else if (chosen > group_topk * (experts / groups)) {
    reader.report("num_experts_per_tok " + number(chosen) + " is above the number of experts in topk_group " +
                  number(group_topk) + " groups");
  }
}

ModelConfig read_model(const Family& family, const json& parsed, std::vector<std::string>& problems) {
  ModelConfig model;
  Reader reader(parsed, "", problems);
  for (const Row& row : common_rows()) row.read(reader, model);
  for (const Row& row : family.rows) row.read(reader, model);
  check_heads(reader, model);
  check_experts(reader, model);
  return model;
}

/// Ids that the vocabulary does not have are passed over, as `generate` passes over them.
std::optional<std::int64_t> read_end_of_document(const json& parsed, const ModelConfig& model,
                                                 std::vector<std::string>& problems) {
  const auto entry = parsed.find("eos_token_id");
  if (entry == parsed.end() || entry->is_null()) return std::nullopt;
  for (const json& id : entry->is_array() ? *entry : json::array({*entry})) {
    if (!id.is_number_integer()) {
      problems.push_back("eos_token_id = " + entry->dump() + " is not a token id or a list of them");
      return std::nullopt;
    }
    if (const auto token = id.get<std::int64_t>(); token >= 0 && token < model.vocab_size.value_or(0)) return token;
  }
  return std::nullopt;
}

json write_model(const Family& family, const ModelConfig& model) {
  json written = {{"model_type", family.model_type}, {"architectures", {family.architectures.front()}}};
  for (const auto* rows : {&common_rows(), &family.rows}) {
    for (const Row& row : *rows) {
      if (row.write) row.write(model, written);
    }
  }
  return written;
}

/// What would be lost if `model` were written as a model of `family` and read back.
std::vector<std::string> losses(const Family& family, const ModelConfig& model) {
  std::vector<std::string> problems;
  const ModelConfig back = read_model(family, write_model(family, model), problems);
  if (!problems.empty() && (!back.num_layers || !back.hidden_size || !back.num_attention_heads)) return problems;
  std::vector<std::string> differences = architecture_differences(model, back, family.model_type);
  differences.insert(differences.end(), problems.begin(), problems.end());
  return differences;
}

void require_geometry(const ModelConfig& model) {
  std::vector<std::string> missing;
  if (!model.num_layers) missing.emplace_back("model.num_layers");
  if (!model.hidden_size) missing.emplace_back("model.hidden_size");
  if (!model.num_attention_heads) missing.emplace_back("model.num_attention_heads");
  if (!model.vocab_size) missing.emplace_back("model.vocab_size");
  if (missing.empty()) return;
  throw base::UserError({.what = "A model without " + base::join(missing, ", ") + " cannot be written as config.json.",
                         .fix = "Set them."});
}

}  // namespace

const char* family_name(const Family& family) { return family.model_type; }

const Family& find_family(const std::string& model_type) {
  for (const Family* family : families()) {
    if (has_type(*family, model_type)) return *family;
  }
  throw base::UserError(
      {.what = "There is no family '" + model_type + "'.", .fix = "Use one of: " + supported_families() + "."});
}

HfModel parse_hf_config(const json& parsed, const std::string& where) {
  const Family& family = family_of(parsed, where);
  std::vector<std::string> problems;
  HfModel result{&family, read_model(family, parsed, problems)};
  result.end_of_document = read_end_of_document(parsed, result.model, problems);
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

HfModel express(const ModelConfig& model, const Family* family) {
  require_geometry(model);
  const Family* closest = nullptr;
  std::vector<std::string> fewest;
  for (const Family* candidate : family != nullptr ? std::vector<const Family*>{family} : families()) {
    std::vector<std::string> lost = losses(*candidate, model);
    if (lost.empty()) return {candidate, model};
    if (closest != nullptr && lost.size() >= fewest.size()) continue;
    closest = candidate;
    fewest = std::move(lost);
  }
  throw base::UserError({.what = family != nullptr
                                     ? "The family " + std::string(family->model_type) + " cannot express this model."
                                     : "No supported family can express this model; the closest is " +
                                           std::string(closest->model_type) + ".",
                         .why = base::join(fewest, "; "),
                         .fix = "Change these fields, or choose another family: " + supported_families() + "."});
}

json to_hf_config(const HfModel& hf) {
  const HfModel checked = express(hf.model, hf.family);
  return write_model(*checked.family, checked.model);
}

}  // namespace pharos::hf
