#include "pharos/plan/stages.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "pharos/base/error.h"
#include "pharos/config/derived.h"
#include "pharos/config/pipeline_layout.h"

namespace pharos::plan {
namespace {

using config::ModelConfig;

std::vector<ModelChunk> chunks_of_layout(const ModelConfig& model) {
  std::vector<ModelChunk> chunks;
  std::int64_t layer = 0;
  for (const std::string& stage : config::parse_pipeline_layout(*model.pipeline_model_parallel_layout)) {
    ModelChunk chunk;
    chunk.pipeline_rank = static_cast<std::int64_t>(chunks.size()) % model.pipeline_model_parallel_size;
    chunk.first_layer = layer;
    chunk.num_layers = std::count(stage.begin(), stage.end(), 't');
    chunk.embedding = stage.find('E') != std::string::npos;
    chunk.output = stage.find('L') != std::string::npos;
    layer += chunk.num_layers;
    chunks.push_back(chunk);
  }
  return chunks;
}

/// Layers of each pipeline rank, those that embedding and loss stand for included.
std::vector<std::int64_t> layers_of_ranks(const ModelConfig& model) {
  const std::int64_t pipeline = model.pipeline_model_parallel_size;
  const auto& first = model.num_layers_in_first_pipeline_stage;
  const auto& last = model.num_layers_in_last_pipeline_stage;
  std::int64_t layers = *model.num_layers + (model.account_for_embedding_in_pipeline_split ? 1 : 0) +
                        (model.account_for_loss_in_pipeline_split ? 1 : 0);
  layers -= first.value_or(0) + last.value_or(0);
  const std::int64_t others = pipeline - (first ? 1 : 0) - (last ? 1 : 0);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(pipeline), others > 0 ? layers / others : 0);
  if (first) counts.front() = *first;
  if (last) counts.back() = *last;
  return counts;
}

}  // namespace

std::vector<ModelChunk> model_chunks(const ModelConfig& model) {
  if (model.pipeline_model_parallel_layout) return chunks_of_layout(model);
  const std::int64_t pipeline = model.pipeline_model_parallel_size;
  const std::int64_t chunks_of_rank = model.virtual_pipeline_model_parallel_size.value_or(1);
  const std::vector<std::int64_t> layers = layers_of_ranks(model);
  std::vector<ModelChunk> chunks(static_cast<std::size_t>(pipeline * chunks_of_rank));
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    chunks[i].pipeline_rank = static_cast<std::int64_t>(i) % pipeline;
    chunks[i].num_layers = layers[i % static_cast<std::size_t>(pipeline)] / chunks_of_rank;
  }
  chunks.front().embedding = true;
  chunks.back().output = true;
  if (model.account_for_embedding_in_pipeline_split) --chunks.front().num_layers;
  if (model.account_for_loss_in_pipeline_split) --chunks.back().num_layers;
  for (std::size_t i = 1; i < chunks.size(); ++i) {
    chunks[i].first_layer = chunks[i - 1].first_layer + chunks[i - 1].num_layers;
  }
  return chunks;
}

std::vector<ModelChunk> chunks_of(const std::vector<ModelChunk>& chunks, std::int64_t pipeline_rank) {
  std::vector<ModelChunk> mine;
  std::copy_if(chunks.begin(), chunks.end(), std::back_inserter(mine),
               [&](const ModelChunk& chunk) { return chunk.pipeline_rank == pipeline_rank; });
  return mine;
}

std::int64_t chunks_in_flight(std::int64_t pipeline_rank, std::int64_t num_pipeline_ranks, std::int64_t num_chunks,
                              std::int64_t num_microbatches) {
  const std::int64_t after = num_pipeline_ranks - 1 - pipeline_rank;
  const std::int64_t warmup = num_chunks > 1 ? 2 * after + (num_chunks - 1) * num_pipeline_ranks : after;
  return std::min(warmup + 1, num_microbatches * num_chunks);
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
