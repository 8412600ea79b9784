#include "pharos/plan/checkpoint_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "pharos/checkpoint/manifest.h"
#include "pharos/checkpoint/rank_file.h"
#include "pharos/checkpoint/safetensors_header.h"
#include "pharos/checkpoint/train_state.h"
#include "pharos/config/derived.h"
#include "pharos/config/recipe/run_yaml.h"

namespace pharos::plan {
namespace {

using checkpoint::ElementType;
using config::RunConfig;

/// metadata.json of checkpoint::write_manifest(): three keys of fixed length.
constexpr std::size_t kMetadataBytes = 95;

ElementType weight_type(const RunConfig& config) {
  switch (config::compute_dtype(config.model)) {
    case config::DType::kBFloat16:
      return ElementType::kBF16;
    case config::DType::kFloat16:
      return ElementType::kF16;
    default:
      return ElementType::kF32;
  }
}

/// Kinds of optimizer state in a checkpoint, all fp32.
std::vector<std::string> state_kinds(const RunConfig& config) {
  std::vector<std::string> kinds;
  if (!config.checkpoint.save_optim) return kinds;
  if (weight_type(config) != ElementType::kF32) kinds.push_back("main_param");
  if (config.optimizer.optimizer == config::OptimizerKind::kSgd) {
    kinds.push_back("momentum_buffer");
  } else {
    kinds.insert(kinds.end(), {"exp_avg", "exp_avg_sq"});
  }
  return kinds;
}

/// Fills sizes from the pieces of a declared model, stored as one rank stores them.
void measure_folder(CheckpointPlan& plan, const config::ResolvedConfig& resolved, const comm::Mesh& mesh,
                    std::int64_t iterations) {
  const RunConfig& config = resolved.config;
  const std::string file = checkpoint::rank_file_name(0);
  std::vector<checkpoint::TensorEntry> entries;
  checkpoint::Manifest manifest;
  const auto add = [&](const std::string& prefix, ElementType type, const tensor::Piece& piece) {
    const std::string name = prefix + piece.name;
    const std::vector<std::int64_t> offset(piece.shape.size(), 0);
    if (!manifest.tensors
             .emplace(name, checkpoint::StoredTensor{name, piece.shape, type, {{file, offset, piece.shape}}})
             .second) {
      return;  // tied embeddings at both ends are stored once
    }
    entries.push_back({name, type, piece.shape});
    plan.tensor_bytes += static_cast<double>(*checkpoint::tensor_size_bytes(type, piece.shape));
  };
  manifest.state_kinds = state_kinds(config);
  for (const ModelChunk& chunk : model_chunks(config.model)) {
    visit_parameters(config, chunk, mesh, [&](const tensor::Parameter& parameter) {
      for (const tensor::Piece& piece : parameter.pieces) {
        add("", parameter.dtype == at::kFloat ? ElementType::kF32 : weight_type(config), piece);
        if (!parameter.trainable) continue;
        for (const std::string& kind : manifest.state_kinds) add(kind + "/", ElementType::kF32, piece);
      }
    });
  }
  const std::string header = checkpoint::render_safetensors_header(entries, {{"format", "pharos"}});
  manifest.iteration = iterations;
  for (const comm::MeshDim dim : {comm::MeshDim::kTensor, comm::MeshDim::kContext, comm::MeshDim::kData,
                                  comm::MeshDim::kPipeline, comm::MeshDim::kExpertTensor, comm::MeshDim::kExpert}) {
    manifest.parallel[comm::mesh_dim_name(dim)] = mesh.size(dim);
  }
  const auto tensor_file = static_cast<std::size_t>(plan.tensor_bytes) + header.size();
  checkpoint::TrainState state;
  state.step = iterations;
  const std::string train_state = checkpoint::to_json(state).dump(1) + "\n", yaml = config::to_yaml(resolved);
  manifest.files = {{file, tensor_file, 0},
                    {checkpoint::kTrainStateFile, train_state.size(), 0},
                    {checkpoint::kRunConfigFile, yaml.size(), 0}};
  const std::string manifest_text = checkpoint::to_json(manifest).dump(1) + "\n";
  plan.size_bytes =
      static_cast<double>(tensor_file + train_state.size() + yaml.size() + manifest_text.size() + kMetadataBytes);
}

}  // namespace

CheckpointPlan plan_checkpoints(const config::ResolvedConfig& resolved, const comm::Mesh& mesh,
                                std::int64_t iterations) {
  const config::CheckpointConfig& settings = resolved.config.checkpoint;
  const std::int64_t interval = settings.save_interval.value_or(iterations);
  CheckpointPlan plan;
  const bool saves = interval > 0;  // 0 turns saving off
  if (saves && iterations > 0 && !resolved.config.validation.skip_train) {
    plan.num_saves = (iterations + interval - 1) / interval;  // the last step is saved too
    plan.num_kept = settings.most_recent_k < 0 ? plan.num_saves : std::min(plan.num_saves, settings.most_recent_k);
  }
  measure_folder(plan, resolved, mesh, iterations);
  return plan;
}

}  // namespace pharos::plan
