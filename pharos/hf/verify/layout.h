// The model of a verification, divided as its layout says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pharos/config/model_config.h"
#include "pharos/hf/verify/verify.h"

namespace pharos::hf {

/// `model` in float32 with the sizes of `layout`. Layers that the stages do not share evenly go to the first one, and
/// the vocabulary is padded as far as tensor parallelism needs.
config::ModelConfig divide_model(config::ModelConfig model, const VerifyLayout& layout);

/// Why `model` and a batch of `num_rows` sequences of `num_tokens` tokens cannot be divided so; empty: they can.
std::vector<std::string> layout_problems(const config::ModelConfig& model, const VerifyLayout& layout,
                                         std::int64_t num_rows, std::int64_t num_tokens);

}  // namespace pharos::hf
