// A model of a checkpoint as it is on one rank.
#pragma once

#include <memory>
#include <vector>

#include "pharos/config/model_config.h"
#include "pharos/model/transformer.h"

namespace pharos::hf {

/// Declared, not allocated; without parallelism, whatever `config` says.
std::unique_ptr<model::Transformer> declare_whole(config::ModelConfig config);

/// Its pieces in the order of the forward pass.
std::vector<const tensor::Piece*> pieces_of(model::Transformer& model);

}  // namespace pharos::hf
