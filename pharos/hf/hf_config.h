// Hugging Face config.json <-> ModelConfig (bridge-config.md 4.1, 4.2), for the families of families/. Knows no torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "pharos/config/model_config.h"

namespace pharos::hf {

struct Family;  // families/family.h

struct HfModel {
  const Family* family;  ///< never null; lives as long as the program
  config::ModelConfig model;
  std::optional<std::int64_t> end_of_document = std::nullopt;  ///< eos_token_id, the first of several
};

/// "gpt2", …: model_type in config.json.
const char* family_name(const Family& family);

/// The family of that model_type. UserError naming all families otherwise.
const Family& find_family(const std::string& model_type);

/// Reads both spellings: rope_parameters (transformers 5) or rope_theta with rope_scaling, dtype or torch_dtype; and
/// GPT-2's own names (n_embd, …). A key that is absent has the value that the family's configuration class in
/// transformers gives it. `where` (a path) is named in messages. UserError listing every problem at once: a family or
/// feature that is not supported (with those that are), a missing key, a value of a wrong type or range.
HfModel parse_hf_config(const nlohmann::json& json, const std::string& where);

/// The same from FOLDER/config.json.
HfModel read_hf_config(const std::filesystem::path& folder);

/// The first family that can hold `model`, whose vocab_size must be set, or `family` if one is given. UserError naming
/// every field that it (without one: that the closest family) cannot express.
HfModel express(const config::ModelConfig& model, const Family* family = nullptr);

/// config.json in transformers 5's spelling. parse_hf_config() reads it back to the same architecture and type of
/// weights (params_dtype). UserError naming every field of the model that the family cannot express. Fields that say
/// how to train and not what the model is (parallelism, recomputation, kernels, dropless or not, …) do not matter.
nlohmann::json to_hf_config(const HfModel& hf);

}  // namespace pharos::hf
