// What each pipeline rank holds, and the layout of ranks a configuration asks for.
#pragma once

#include <cstdint>
#include <vector>

#include "pharos/comm/mesh.h"
#include "pharos/config/run_config.h"

namespace pharos::plan {

/// A part of the model that runs in one go on one pipeline rank.
struct ModelChunk {
  std::int64_t pipeline_rank = 0;
  std::int64_t first_layer = 0;
  std::int64_t num_layers = 0;
  bool embedding = false;
  bool output = false;
  std::int64_t num_prediction_layers = 0;  ///< of multi-token prediction; only where `output` is
};

/// The stages in the order of the model (model::stages_of) and where the schedule has them. `model` must be valid.
std::vector<ModelChunk> model_chunks(const config::ModelConfig& model);

/// Chunks of one pipeline rank.
std::vector<ModelChunk> chunks_of(const std::vector<ModelChunk>& chunks, std::int64_t pipeline_rank);

/// The fewest ranks that dense and expert layout can both be divided over: lcm(TP x PP x CP, ETP x EP x PP). Sizes
/// below 1 count as 1.
std::int64_t smallest_world_size(const config::ModelConfig& model);

/// The first rank of a pipeline rank.
std::int64_t first_rank(const comm::Mesh& mesh, std::int64_t pipeline_rank);

}  // namespace pharos::plan
