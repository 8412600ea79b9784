// The rotary embedding that a configuration asks for.
#pragma once

#include "pharos/config/model_config.h"
#include "pharos/nn/rotary.h"

namespace pharos::model {

/// Of all heads, or of the rotated part of multi-latent attention's.
nn::RotaryOptions rotary_options(const config::ModelConfig& config);

}  // namespace pharos::model
