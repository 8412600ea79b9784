#include "pharos/model/stages.h"

#include <algorithm>
#include <string>

#include "pharos/config/derived.h"
#include "pharos/config/grammar/pipeline_layout.h"

namespace pharos::model {
namespace {

using config::ModelConfig;

std::vector<Stage> stages_of_layout(const ModelConfig& model) {
  std::vector<Stage> stages;
  std::int64_t layer = 0;
  for (const std::string& letters : config::parse_pipeline_layout(*model.pipeline_model_parallel_layout)) {
    Stage stage;
    stage.first_layer = layer;
    stage.num_layers = std::count(letters.begin(), letters.end(), 't');
    stage.embedding = letters.find('E') != std::string::npos;
    stage.output = letters.find('L') != std::string::npos;
    stage.num_prediction_layers = std::count(letters.begin(), letters.end(), 'm');
    layer += stage.num_layers;
    stages.push_back(stage);
  }
  return stages;
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

at::ScalarType scalar_type(config::DType type) {
  switch (type) {
    case config::DType::kBFloat16:
      return at::kBFloat16;
    case config::DType::kFloat16:
      return at::kHalf;
    default:
      return at::kFloat;
  }
}

}  // namespace

at::ScalarType compute_type(const ModelConfig& model) { return scalar_type(config::compute_dtype(model)); }

at::ScalarType boundary_type(const ModelConfig& model) {
  return scalar_type(model.pipeline_dtype.value_or(config::compute_dtype(model)));
}

std::vector<Stage> stages_of(const ModelConfig& model) {
  if (model.pipeline_model_parallel_layout) return stages_of_layout(model);
  const std::int64_t pipeline = model.pipeline_model_parallel_size;
  const std::int64_t chunks_of_rank = config::num_model_chunks(model);
  const std::vector<std::int64_t> layers = layers_of_ranks(model);
  std::vector<Stage> stages(static_cast<std::size_t>(pipeline * chunks_of_rank),
                            Stage{.embedding = false, .output = false});
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const std::int64_t rank = config::pipeline_rank_of_stage(model, static_cast<std::int64_t>(i));
    stages[i].num_layers = layers[static_cast<std::size_t>(rank)] / chunks_of_rank;
  }
  stages.front().embedding = true;
  stages.back().output = true;
  stages.back().num_prediction_layers = model.mtp_num_layers.value_or(0);
  if (model.account_for_embedding_in_pipeline_split) --stages.front().num_layers;
  if (model.account_for_loss_in_pipeline_split) --stages.back().num_layers;
  for (std::size_t i = 1; i < stages.size(); ++i) {
    stages[i].first_layer = stages[i - 1].first_layer + stages[i - 1].num_layers;
  }
  return stages;
}

}  // namespace pharos::model
