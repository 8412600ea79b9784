#include "pharos/hf/transfer/whole_model.h"

namespace pharos::hf {

std::unique_ptr<model::Transformer> declare_whole(config::ModelConfig config) {
  config.tensor_model_parallel_size = config.pipeline_model_parallel_size = config.context_parallel_size = 1;
  config.expert_model_parallel_size = 1;
  config.expert_tensor_parallel_size.reset();
  config.sequence_parallel = false;
  return std::make_unique<model::Transformer>(config, model::whole_model(config), comm::Mesh(1, {}), 0);
}

std::vector<const tensor::Piece*> pieces_of(model::Transformer& model) {
  std::vector<const tensor::Piece*> pieces;
  for (const tensor::Parameter* parameter : model.parameters()) {
    for (const tensor::Piece& piece : parameter->pieces) pieces.push_back(&piece);
  }
  return pieces;
}

}  // namespace pharos::hf
