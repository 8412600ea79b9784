#include "pharos/plan/stages.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "pharos/base/error.h"
#include "pharos/config/derived.h"
#include "pharos/model/stages.h"
#include "pharos/pipeline/run_schedule.h"

namespace pharos::plan {

using config::ModelConfig;

std::vector<ModelChunk> model_chunks(const ModelConfig& model) {
  const std::vector<int> ranks = pipeline::ranks_of_stages(model);
  std::vector<ModelChunk> chunks;
  for (const model::Stage& stage : model::stages_of(model)) {
    chunks.push_back({ranks.at(chunks.size()), stage.first_layer, stage.num_layers, stage.embedding, stage.output,
                      stage.num_prediction_layers});
  }
  return chunks;
}

std::vector<ModelChunk> chunks_of(const std::vector<ModelChunk>& chunks, std::int64_t pipeline_rank) {
  std::vector<ModelChunk> mine;
  std::copy_if(chunks.begin(), chunks.end(), std::back_inserter(mine),
               [&](const ModelChunk& chunk) { return chunk.pipeline_rank == pipeline_rank; });
  return mine;
}

std::int64_t smallest_world_size(const ModelConfig& model) {
  const auto at_least_one = [](std::int64_t size) { return std::max<std::int64_t>(1, size); };
  const std::int64_t pipeline = at_least_one(model.pipeline_model_parallel_size);
  const std::int64_t dense = at_least_one(model.tensor_model_parallel_size) * at_least_one(model.context_parallel_size);
  const std::int64_t expert = at_least_one(config::expert_tensor_parallel_size_or_default(model)) *
                              at_least_one(model.expert_model_parallel_size);
  return pipeline * std::lcm(dense, expert);
}

std::int64_t first_rank(const comm::Mesh& mesh, std::int64_t pipeline_rank) {
  for (std::int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    if (mesh.coordinate(rank, comm::MeshDim::kPipeline) == pipeline_rank) return rank;
  }
  throw base::InternalError("no rank has pipeline coordinate " + std::to_string(pipeline_rank));
}

}  // namespace pharos::plan
