// How the layers are cut into stages.
#pragma once

#include <c10/core/ScalarType.h>

#include <vector>

#include "pharos/config/model_config.h"
#include "pharos/model/transformer.h"

namespace pharos::model {

/// The stages in the order of the model: pipeline size × model chunks of a rank of them. By layout text, by the counts
/// of first and last stage, or even (with embedding and loss counted as layers if asked). `config` must be valid.
std::vector<Stage> stages_of(const config::ModelConfig& config);

/// What the layers compute in.
at::ScalarType compute_type(const config::ModelConfig& config);
/// Of the hidden states that go from stage to stage: model.pipeline_dtype, or what the layers compute in.
at::ScalarType boundary_type(const config::ModelConfig& config);

}  // namespace pharos::model
