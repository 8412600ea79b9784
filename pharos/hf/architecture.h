// What of a ModelConfig is the model itself, as against how it is trained.
#pragma once

#include <string>
#include <vector>

#include "pharos/config/model_config.h"

namespace pharos::hf {

/// Every field in which two models differ that compute something else, or that train with other dropout:
/// "model.hidden_dropout = 0.1 (gpt2: 0)" with `name` for the second. Spellings of the same do not differ: an unset
/// width and the one it stands for, a list of layers and a period, fields without effect.
std::vector<std::string> architecture_differences(const config::ModelConfig& model, const config::ModelConfig& other,
                                                  const std::string& name);

}  // namespace pharos::hf
