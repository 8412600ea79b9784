// Hugging Face config.json -> ModelConfig (bridge-config.md 4.1, 4.2), for the families Pharos has. Knows no torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "pharos/config/model_config.h"

namespace pharos::hf {

enum class Family : std::uint8_t { kGpt2, kLlama, kQwen2, kQwen3 };

/// "gpt2", …: model_type in config.json.
const char* family_name(Family family);

struct HfModel {
  Family family;
  config::ModelConfig model;
};

/// Reads both spellings: rope_parameters (transformers 5) or rope_theta with rope_scaling, dtype or torch_dtype; and
/// GPT-2's own names (n_embd, …). `where` (a path) is named in messages. UserError listing every problem at once: a
/// family or feature that is not supported (with those that are), a missing key, a value of a wrong type or range.
HfModel parse_hf_config(const nlohmann::json& json, const std::string& where);

/// The same from FOLDER/config.json.
HfModel read_hf_config(const std::filesystem::path& folder);

}  // namespace pharos::hf
