#include "pharos/plan/memory.h"

#include <algorithm>
#include <numeric>

#include "pharos/base/error.h"
#include "pharos/config/derived.h"
#include "pharos/model/theoretical_memory.h"
#include "pharos/plan/activations.h"
#include "pharos/plan/estimate_setup.h"

namespace pharos::plan {
namespace {

using config::ModelConfig;
using config::RunConfig;

constexpr double kMebibyte = 1024.0 * 1024.0;
constexpr double kFloatBytes = 4;
/// Resident size of a process that has run a step of a model with hardly any parameters: program, libtorch, its kernels
/// and the matrix library's buffers.
constexpr double kProcessBytes = 145 * kMebibyte;

/// What is alive at one moment beside parameters, gradients and optimizer.
struct Moment {
  std::string phase;
  double activations = 0;
  double logits = 0;
  double transient = 0;
  double total() const { return activations + logits + transient; }
};

void keep_largest(Moment& largest, Moment moment) {
  if (moment.total() > largest.total()) largest = std::move(moment);
}

/// Layers recomputed together, as model::Transformer does it (bridge-config 1.6).
struct RecomputePlan {
  bool full = false;
  bool uniform = true;
  std::int64_t length = 1;  ///< layers of a unit (uniform), or recomputed layers of a chunk (block)
};

RecomputePlan recompute_plan(const ModelConfig& model) {
  return {model.recompute_granularity == config::RecomputeGranularity::kFull,
          model.recompute_method != config::RecomputeMethod::kBlock, model.recompute_num_layers.value_or(1)};
}

/// What one pass through a chunk keeps.
struct KeptByChunk {
  double bytes = 0;
  /// Most bytes alive when a unit is recomputed: what the units up to it keep, and the unit. Those behind it have been
  /// through their backward pass. 0 without recomputation.
  double while_recomputing = 0;
  bool ends_with_recomputation = false;
};

KeptByChunk kept_by_chunk(const ModelConfig& model, const LayerShape& shape, const ModelChunk& chunk) {
  const RecomputePlan recompute = recompute_plan(model);
  KeptByChunk kept;
  for (std::int64_t begin = 0; begin < chunk.num_layers;) {
    const bool is_unit = recompute.full && (recompute.uniform || begin < recompute.length);
    const std::int64_t end =
        is_unit && recompute.uniform ? std::min(chunk.num_layers, begin + recompute.length) : begin + 1;
    double unit = 0;
    for (std::int64_t i = begin; i < end; ++i) unit += kept_by_layer(model, shape, chunk.first_layer + i).total();
    kept.bytes += is_unit ? kept_by_layer(model, shape, chunk.first_layer + begin).input : unit;
    kept.ends_with_recomputation = is_unit;
    // The unit's input is there already; its output, of the same size, comes once more.
    if (is_unit) kept.while_recomputing = std::max(kept.while_recomputing, kept.bytes + unit);
    begin = end;
  }
  return kept;
}

/// The moment of a pipeline rank's training step with most bytes alive.
Moment training_peak(const RunConfig& config, const std::vector<ModelChunk>& chunks, std::int64_t num_microbatches) {
  const ModelConfig& model = config.model;
  const LayerShape shape = layer_shape(model, *config.train.micro_batch_size);
  const auto num_chunks = static_cast<std::int64_t>(chunks.size());
  const std::int64_t in_flight =
      chunks_in_flight(chunks.front().pipeline_rank, model.pipeline_model_parallel_size, num_chunks, num_microbatches);
  double kept = 0;
  for (const ModelChunk& chunk : chunks) kept += kept_by_chunk(model, shape, chunk).bytes;
  kept *= static_cast<double>(in_flight) / static_cast<double>(num_chunks);

  Moment largest;
  if (chunks.back().output) {
    keep_largest(largest, {"loss", kept + kept_by_head(model, shape), logits_bytes(model, shape),
                           output_backward_bytes(model, shape)});
  }
  const double mlp = mlp_backward_bytes(model, shape), attention = attention_backward_bytes(model, shape);
  for (const ModelChunk& chunk : chunks) {
    if (chunk.num_layers == 0) continue;
    const KeptByChunk one = kept_by_chunk(model, shape, chunk);
    const double mlp_kept = kept_by_layer(model, shape, chunk.first_layer + chunk.num_layers - 1).mlp;
    if (!one.ends_with_recomputation) {
      keep_largest(largest, {"mlp backward", kept, 0, mlp});
      keep_largest(largest, {"attention backward", kept - mlp_kept, 0, attention});
    }
    if (one.while_recomputing > 0) {
      const double alive = kept - one.bytes + one.while_recomputing;
      keep_largest(largest, {"backward of recomputed mlp", alive, 0, mlp});
      keep_largest(largest, {"backward of recomputed attention", alive - mlp_kept, 0, attention});
    }
  }
  return largest;
}

Moment evaluation_peak(const RunConfig& config, const ModelChunk& last) {
  const LayerShape shape = layer_shape(config.model, config::eval_micro_batch_size_or_default(config));
  const double whole = shape.tokens() * shape.hidden * shape.element_bytes, stream = whole / shape.parts;
  Moment largest{"evaluation", stream, 0, layer_forward_bytes(config.model, shape)};
  if (last.output)
    keep_largest(largest,
                 {"evaluation", stream, logits_bytes(config.model, shape), shape.parts > 1 ? stream + whole : stream});
  return largest;
}

Moment peak_by_formula(const RunConfig& config, const comm::Mesh& mesh) {
  const double scale =
      config::compute_dtype(config.model) == config::DType::kFloat32 ? 2 : 1;  // Megatron counts 16 bits
  return {"by formula",
          scale * model::estimate_memory(config.model, estimate_setup(config, mesh)).activations.total_bytes, 0, 0};
}

double num_moments(const RunConfig& config) {
  return config.optimizer.optimizer == config::OptimizerKind::kAdam ? 2 : 1;
}

std::vector<MemoryPart> parts_of(const RunConfig& config, const comm::Mesh& mesh, const RankParameters& held,
                                 const Moment& moment, double data_bytes) {
  const bool fp32 = config::compute_dtype(config.model) == config::DType::kFloat32;
  const bool cuda = config.dist.device == config::DeviceKind::kCuda;
  const auto buffer = static_cast<double>(held.buffer_elements);
  double shards = 1;
  if (config.optimizer.use_distributed_optimizer || config.ddp.use_distributed_optimizer) {
    shards = static_cast<double>(mesh.size(comm::MeshDim::kData) * mesh.size(comm::MeshDim::kContext));
  }
  return {{"process", cuda ? "process (CUDA context not counted)" : "process and libraries", cuda ? 0 : kProcessBytes},
          {"weights", "weights", static_cast<double>(held.elements) * (fp32 ? 4 : 2)},
          {"main_parameters", "fp32 main parameters", fp32 ? 0 : buffer * kFloatBytes / shards},
          {"gradients", "fp32 gradients", buffer * kFloatBytes},
          {"optimizer", "optimizer moments", buffer * kFloatBytes * num_moments(config) / shards},
          {"activations", "activations kept", moment.activations},
          {"logits", "logits and loss", moment.logits},
          {"transient", "gradients on their way, temporaries", moment.transient},
          {"data", "data index and mapped pages", cuda ? 0 : data_bytes}};
}

double sum_of(const std::vector<MemoryPart>& parts) {
  return std::accumulate(parts.begin(), parts.end(), 0.0,
                         [](double sum, const MemoryPart& part) { return sum + part.bytes; });
}

}  // namespace

double MemoryPlan::part(const std::string& key) const {
  for (const MemoryPart& one : parts) {
    if (one.key == key) return one.bytes;
  }
  throw base::InternalError("no part of memory is called " + key);
}

MemoryPlan plan_memory(const RunConfig& config, const comm::Mesh& mesh, const ParameterPlan& parameters,
                       double data_bytes) {
  const std::int64_t num_microbatches = estimate_setup(config, mesh).num_microbatches;
  const std::vector<ModelChunk> chunks = model_chunks(config.model);
  MemoryPlan plan;
  for (std::int64_t rank = 0; rank < config.model.pipeline_model_parallel_size; ++rank) {
    const auto mine = chunks_of(chunks, rank);
    Moment moment;
    if (parameters.by_formula) {
      moment = peak_by_formula(config, mesh);
    } else {
      if (!config.validation.skip_train) moment = training_peak(config, mine, num_microbatches);
      if (config.validation.eval_iters > 0) keep_largest(moment, evaluation_peak(config, mine.back()));
    }
    const RankParameters& held = parameters.ranks[static_cast<std::size_t>(rank)];
    std::vector<MemoryPart> parts = parts_of(config, mesh, held, moment, data_bytes);
    plan.peak_bytes_of_ranks.push_back(sum_of(parts));
    if (plan.parts.empty() || plan.peak_bytes_of_ranks.back() > plan.peak_bytes) {
      plan.pipeline_rank = rank;
      plan.phase = moment.phase;
      plan.peak_bytes = plan.peak_bytes_of_ranks.back();
      plan.parts = std::move(parts);
    }
  }
  return plan;
}

}  // namespace pharos::plan
